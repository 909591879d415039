"""p-values of a family of paired comparisons, and their correction for how many there are."""

import math
from collections.abc import Sequence

import numpy as np


def paired_t_p(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of the paired t test of differences (n,), n at least 2; 1 where all of them are 0."""
    from scipy import stats

    spread = np.std(differences, ddof=1)
    if spread == 0:
        return 0.0 if np.any(differences) else 1.0
    statistic = abs(np.mean(differences)) / (spread / math.sqrt(len(differences)))
    return float(2 * stats.t.sf(statistic, len(differences) - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's corrected p-values of a family, in the order given: none is below its own p, none above 1.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
    """
    order, found, largest = np.argsort(ps, kind="stable"), [0.0] * len(ps), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[index]))
        found[index] = largest
    return found
