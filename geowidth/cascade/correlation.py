"""Two numbers a block, held against each other: Pearson's and Spearman's correlation with intervals."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from geowidth.artifacts.per_layer import count, per_layer
from geowidth.errors import UserError, number
from geowidth.inputs import ArrayLike


@dataclass(frozen=True)
class Correlation:
    """A correlation of n pairs. value: None where one side has no spread. interval: at `confidence`, None for n < 4 and
    for a value of 1 or -1, about which Fisher's z says nothing."""

    value: float | None
    interval: tuple[float, float] | None
    confidence: float
    pairs: int

    def to_json(self) -> dict[str, Any]:
        interval = None if self.interval is None else list(self.interval)
        return {"value": self.value, "interval": interval, "confidence": self.confidence, "pairs": self.pairs}


def correlate(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> dict[str, Correlation]:
    """{"spearman", "pearson"}: Correlations of two rows of finite numbers, one a block each.

    Intervals by Fisher's z: its variance is 1 / (n - 3) for Pearson, (1 + r^2 / 2) / (n - 3) for Spearman (Bonett and
    Wright, Psychometrika 65, 2000). They take blocks as independent, which those of one model are not quite.
    """
    confidence = number("confidence", confidence, "numbers between 0 and 1", lambda value: 0 < value < 1)
    pairs = count(x)
    if count(y) != pairs or pairs < 2:
        raise UserError(f"{pairs} and {count(y)} numbers came; a correlation needs as many of both, two or more")
    left, right = (per_layer(name, v, pairs, minimum=-sys.float_info.max) for name, v in (("x", x), ("y", y)))
    pearson = _correlation(left, right)
    spearman = _correlation(stats.rankdata(left), stats.rankdata(right))
    return {
        "spearman": _with_interval(spearman, pairs, confidence, lambda r: 1 + r * r / 2),
        "pearson": _with_interval(pearson, pairs, confidence, lambda r: 1.0),
    }


def _correlation(x, y):
    x, y = x - x.mean(), y - y.mean()
    if min(np.abs(x).max(), np.abs(y).max()) == 0:
        return None
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1, 1))


def _with_interval(value, pairs, confidence, factor):
    if value is None or pairs < 4 or abs(value) == 1:
        return Correlation(value, None, confidence, pairs)
    half = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(factor(value) / (pairs - 3))
    z = math.atanh(value)
    return Correlation(value, (math.tanh(z - half), math.tanh(z + half)), confidence, pairs)


def why_no_interval(value: float) -> str:
    """Words in place of the interval of a correlation that has none."""
    return f"no interval at {value:.0f}" if abs(value) == 1 else "too few blocks for an interval"
