"""Widths by measured sensitivity: what the loss grows by when one layer alone keeps a share of its neurons."""

from __future__ import annotations

import numpy as np

from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import Optimum
from geowidth.allocate.surrogate import calibrated_surrogate, exponents, smooth
from geowidth.errors import flag, number
from geowidth.inputs import ArrayLike
from geowidth.slicing.evidence import Evidence

SHARE = 0.5  # of its neurons that a layer keeps while it is looked at


def check_share(share: float) -> float:
    """`share` if a layer can be sliced to it alone; UserError otherwise."""
    return number("share", share, "numbers above 0 and below 1", lambda v: 0 < v < 1)


def by_sensitivity(
    evidence: Evidence,
    problem: Problem,
    *,
    share: float = SHARE,
    exponent: ArrayLike = 1.0,
    smoothing: bool = False,
) -> Optimum:
    """Widths for which the surrogate sum of sensitivity (own width / width)^exponent is least.

    share: of its neurons that each layer alone keeps, the best-scored ones, while the loss is taken. With exponent 1
    widths go as the square root of the sensitivity, between floor and cap. smoothing: over depth by [1 2 1]/4. A layer
    without which the loss does not grow gets the floor.
    """
    share, smoothing = check_share(share), flag("smoothing", smoothing)
    rate = exponents(exponent, problem.layers)
    differences = evidence.losses([share]).differences(share)
    found = differences.mean(1)
    return weighed(evidence, found, rate, smoothing, {"sensitivity": found, "standard_errors": errors_of(differences)})


def weighed(evidence: Evidence, found: np.ndarray, rate: np.ndarray, smoothing: bool, details: dict) -> Optimum:
    """The Optimum of sensitivities (layers,), negative ones as 0; each counts at the layer's own width."""
    positive = np.maximum(found, 0.0)
    difficulty = smooth(positive) if smoothing else positive
    surrogate = calibrated_surrogate(difficulty, evidence.sizes.widths, rate)
    return Optimum(surrogate, {**details, "difficulty": difficulty, "exponents": rate})


def errors_of(differences: np.ndarray) -> np.ndarray:
    """Standard errors of means over windows, (layers,), of (layers, windows)."""
    return differences.std(1, ddof=1) / np.sqrt(differences.shape[1])
