"""Widths by signals and a cheap sensitivity together: little loss is measured, and geometry says what to make of it.

The sensitivity of every layer is measured on a tenth of the windows, so at a tenth of its cost, and is noisy. A
regression of its logarithm on the logarithms of the signals says what a layer with such geometry usually has. The two
are averaged, each with the weight that its variance deserves: empirical Bayes, the shrinkage of Fay and Herriot (JASA
74, 1979) for small samples. Signals that say nothing leave the noisy sensitivities where they are, but for a pull
towards their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import Optimum
from geowidth.allocate.schedules.geometry import signal
from geowidth.allocate.surrogate import exponents, smooth
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.errors import UserError, choose, flag, shown, whole
from geowidth.geometry import GEOMETRIES
from geowidth.inputs import ArrayLike
from geowidth.measure.statistics import STATISTICS
from geowidth.signals import read_signal
from geowidth.slicing.draws import check_draws
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.geometry import MOST_DRAWS, TOLERANCE
from geowidth.slicing.sensitivity import SHARE, check_share, errors_of, weighed

SIGNALS = ("topology/spherical", "shift/spherical", "gw/spherical")
TENTH = 10
LEAST_WINDOWS = 2  # a spread needs two
ROUNDS = 50


def by_both(
    evidence: Evidence,
    problem: Problem,
    *,
    signals: Sequence[str] = SIGNALS,
    share: float = SHARE,
    windows: int | None = None,
    exponent: ArrayLike = 1.0,
    depth: bool = False,
    tokens: int = 512,
    tolerance: float = TOLERANCE,
    most_draws: int = MOST_DRAWS,
) -> Optimum:
    """Widths by sensitivities that were measured on few windows and shrunk towards what the signals predict.

    signals: "statistic/geometry" each. share, exponent: as in rule sensitivity. windows: that the sensitivity is
    measured on (default: a tenth of the calibration windows, at least two). depth: whether the regression also knows
    how deep a layer lies, which made widths no better on SmolLM2. tokens, tolerance, most_draws: as in rule geometry.
    """
    names, share, depth = _signals(signals), check_share(share), flag("depth", depth)
    text = evidence.windows()
    few = max(LEAST_WINDOWS, len(text.tokens) // TENTH) if windows is None else whole("windows", windows, LEAST_WINDOWS)
    if few > len(text.tokens):
        raise UserError(f"windows is {few}; there are {len(text.tokens)} calibration windows: take as many or fewer")
    rate = exponents(exponent, problem.layers)
    check_draws(tokens, tolerance, most_draws)
    differences = evidence.losses([share], few).differences(share)
    work = evidence.work([read_signal(n, GEOMETRIES) for n in names], _mixed(names), tokens, tolerance, most_draws)
    measured, errors = differences.mean(1), errors_of(differences)
    features = np.array([smooth(signal(work.mean, name)) for name in names])
    found = shrunk(measured, errors, features, problem.depth if depth else None)
    details = {"measured": measured, "standard_errors": errors, "windows": few, "stability": work.to_json()}
    answer = weighed(evidence, found.values, rate, False, details)
    return replace(answer, details={**answer.details, **found.details})


@dataclass(frozen=True)
class Shrunk:
    """Sensitivities (layers,) after shrinkage, and in details how: coefficients, predicted, weight, variance."""

    values: np.ndarray
    details: dict[str, Any]


def shrunk(measured: np.ndarray, errors: np.ndarray, features: np.ndarray, depth: np.ndarray | None = None) -> Shrunk:
    """The Shrunk of noisy sensitivities.

    measured, errors: means and standard errors of every layer, (layers,). features: signals, 0 or more, (signals,
    layers). depth: a further column of the regression, (layers,).

    On the logarithmic scale a layer's noise is its relative error, at most 1: one whose loss did not grow counts as
    equal to its error, and is told by the regression nearly alone; one whose loss did not change at all in any window
    stays at 0. With too few layers for the regression it is that on a constant.
    """
    positive = np.maximum(measured, errors)
    known = positive > 0
    if known.sum() < 3:
        return Shrunk(np.maximum(measured, 0.0), {"shrunk": False})
    least = positive[known].min()
    level = np.log(np.maximum(positive, least))
    noise = np.square(np.where(known, np.minimum(errors / np.maximum(positive, least), 1.0), 1.0))
    noise = np.maximum(noise, np.median(noise))  # the spread of few windows is itself a guess: none below the middle
    columns = [np.ones(len(level)), *map(_logarithm, features), *([] if depth is None else [depth])]
    design = np.stack(columns[: 1 if len(level) < 2 * len(columns) else None], axis=1)
    spread, coefficients = _regressed(level, noise, design)
    predicted = design @ coefficients
    weight = spread / (spread + noise) if spread > 0 else np.zeros(len(level))
    values = np.where(known, np.exp(weight * level + (1.0 - weight) * predicted), 0.0)
    details = {"coefficients": coefficients, "predicted": np.exp(predicted), "weight_of_measured": weight}
    return Shrunk(values, {"shrunk": True, "values": values, "variance": spread, **details})


def _regressed(level, noise, design):
    """(variance of the layers about the regression, its coefficients): alternately, to a fixed point (Fay-Herriot)."""
    spread = float(np.var(level))
    rows, columns = design.shape
    for _ in range(ROUNDS):
        weight = 1.0 / np.sqrt(spread + noise + 1e-300)
        coefficients = np.linalg.lstsq(design * weight[:, None], level * weight, rcond=None)[0]
        residual = level - design @ coefficients
        # Mean of residual^2 less what noise alone explains; degrees of freedom for the coefficients.
        new = max(0.0, float((np.square(residual).sum() - (rows - columns) / rows * noise.sum()) / (rows - columns)))
        if abs(new - spread) <= 1e-9 * max(new, 1e-12):
            break
        spread = new
    return spread, coefficients


def _logarithm(values):
    """Logarithms, centred; a value of 0 counts as the least one above it, and all equal where there is none."""
    if not (values > 0).any():
        return np.zeros(len(values))
    logs = np.log(np.maximum(values, values[values > 0].min()))
    return logs - logs.mean()


def _mixed(names):
    """The equal mixture of signals as shares, by which the draws settle."""

    def ideal(work: WorkProfile) -> np.ndarray:
        rows = np.array([smooth(signal(work, name)) for name in names])
        mixed = np.sqrt((rows / np.maximum(rows.mean(1, keepdims=True), 1e-300)).mean(0))
        return mixed / mixed.sum() if mixed.any() else np.full(len(mixed), 1.0 / len(mixed))

    return ideal


def _signals(signals):
    if not isinstance(signals, (list, tuple)) or not signals or len(set(signals)) < len(signals):
        raise UserError(f'signals is {shown(signals)}; allowed: a list of different ones as in ["topology/spherical"]')
    for name in signals:
        statistic, geometry = read_signal(name, GEOMETRIES)
        choose("statistic of a signal", statistic, STATISTICS)
        choose("geometry of a signal", geometry, GEOMETRIES)
    return tuple(signals)
