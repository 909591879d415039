"""Widths by measured curves: each layer's loss at several widths, fitted, and solved exactly under the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from geowidth.allocate.curves import Curves
from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import Optimum
from geowidth.errors import UserError, shown
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.sensitivity import check_share, errors_of

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

SHARES = (0.75, 0.5, 0.25)  # of its neurons that a layer keeps while it is looked at
POWERS = np.array([1, 2, 3, 4, 6, 8, 12])  # of the removed share, whose sums with weights from 0 up are the curves
LEAST_ERROR = 0.05  # of the largest loss of a layer: points are not trusted beyond it, however small their errors
LEAST_TRUST = 1e-9  # of the largest error: smaller ones are taken for this, so that no weight overflows


def by_curves(evidence: Evidence, problem: Problem, *, shares: ArrayLike = SHARES) -> Optimum:
    """The widths with the least sum of the layers' fitted losses.

    shares: of its neurons that each layer alone keeps while the loss is taken. A layer's curve is a polynomial of the
    removed share with coefficients from 0 up (`fitted`), so it is 0 at the whole width, and rises and steepens from
    there. That effects of layers add up is taken for granted.
    """
    points = _shares(shares)
    measured = evidence.losses(points)
    differences = np.stack([measured.differences(share) for share in points])  # (points, layers, windows)
    losses, removed = differences.mean(2).T, 1.0 - np.array(points)
    errors = np.stack([errors_of(one) for one in differences], axis=1)
    weights = np.stack([fitted(removed, *layer) for layer in zip(losses, errors, strict=True)])
    gains = [falling(row, width) for row, width in zip(weights, evidence.sizes.widths, strict=True)]
    details = {"shares": points, "losses": losses, "standard_errors": errors, "coefficients": weights, "powers": POWERS}
    return Optimum(Curves(gains), {**details, "fitted": values(weights, removed)})


def fitted(removed: np.ndarray, losses: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Coefficients from 0 up, (powers,), of the polynomial of the removed share closest to the losses.

    removed: shares of the neurons that went, (points,). losses: what the loss grew by. errors: their standard errors,
    by which squares are weighed.
    """
    from scipy.optimize import nnls

    trust = np.maximum(errors, LEAST_ERROR * np.abs(losses).max())
    trust = np.maximum(trust / trust.max(), LEAST_TRUST) if trust.max() > 0 else np.ones(len(trust))
    found, _ = nnls(removed[:, None] ** POWERS / trust[:, None], losses / trust)
    return found


def values(weights: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Fitted losses, (..., points), of coefficients (..., powers) at removed shares (points,)."""
    return weights @ (removed[:, None] ** POWERS).T


def falling(weights: np.ndarray, width: int) -> np.ndarray:
    """What each neuron of a layer of `width` is worth by its curve, never rising: float64 (width,)."""
    at = values(weights, 1.0 - np.arange(width + 1) / width)
    # Convex in exact arithmetic; rounding must not make a neuron worth more than the one before, nor less than nothing.
    return np.minimum.accumulate(np.maximum(at[:-1] - at[1:], 0.0))


def _shares(shares: ArrayLike) -> Sequence[float]:
    if not isinstance(shares, (list, tuple)) or not shares or len(set(shares)) < len(shares):
        raise UserError(f"shares is {shown(shares)}; allowed: a list of different shares as in [0.75, 0.5, 0.25]")
    return [check_share(share) for share in shares]
