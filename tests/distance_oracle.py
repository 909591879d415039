"""Distances in numpy's extended precision, the oracle where float64 itself would lose digits, and clouds to try it
on."""

import numpy as np
import torch

from geowidth.geometry import HYPERBOLIC_RADIUS


def extended_distances(x, y, geometry, radius=HYPERBOLIC_RADIUS):
    """(n, m) extended-precision distances of all rows of x (n, d) to those of y (m, d), tensors or arrays.

    Angles come from the residual after projection, twice, so that nearly parallel and nearly opposite rows keep digits.
    """
    x, y = np.asarray(x).astype(np.longdouble)[:, None], np.asarray(y).astype(np.longdouble)[None]
    if geometry == "raw":
        return np.sqrt(((x - y) ** 2).sum(-1))
    squares = (y * y).sum(-1, keepdims=True)
    factor = (x * y).sum(-1, keepdims=True) / squares
    residual = x - factor * y
    residual -= (residual * y).sum(-1, keepdims=True) / squares * y
    angle = np.arctan2(np.sqrt((residual**2).sum(-1)), factor[..., 0] * np.sqrt(squares[..., 0]))
    if geometry == "spherical":
        return angle
    radius = np.longdouble(radius)
    return 2 * np.arcsinh(2 * radius / ((1 - radius) * (1 + radius)) * np.sin(angle / 2))


def assert_accurate(found, x, y, geometry, tolerance, radius=HYPERBOLIC_RADIUS):
    """Every entry within `tolerance` relative of the oracle; rows parallel to rounding (an angle under 1e-9, a distance
    under 1e-9 of the norms) within 1e-9 absolute instead."""
    found = np.asarray(found).astype(np.longdouble)
    truth = extended_distances(x, y, geometry, radius)
    rows_x, rows_y = (np.asarray(t).astype(np.longdouble) for t in (x, y))
    scale = 1 if geometry != "raw" else np.hypot(*np.meshgrid(*(np.sqrt((r * r).sum(1)) for r in (rows_y, rows_x))))
    tiny = truth <= 1e-9 * scale
    wrong = np.abs(found - truth) > np.where(tiny, 1e-9 * scale, tolerance * truth)
    assert not wrong.any() and not np.isnan(found).any(), worst(found, truth, wrong)


def worst(found, truth, wrong):
    """Words for the first wrong entry."""
    i, j = np.argwhere(wrong | np.isnan(found))[0]
    return f"entry {i}, {j}: {found[i, j]} instead of {truth[i, j]}, {int(wrong.sum())} entries wrong"


def cloud(generator, n, d, dtype=torch.float32, offset=3.0):
    """Off-centre rows, some of them duplicates, scaled copies, opposites and near-duplicates."""
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + offset
    if n > 6:
        x[2] = x[1]
        x[3] = 1.001 * x[1]
        x[4] = -2 * x[1]
        x[5] = x[1] + 1e-5 * x[6]
    return x.to(dtype)
