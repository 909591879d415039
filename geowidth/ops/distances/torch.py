"""Distances in plain torch: the backend that always works, and the gradient that every backend shares.

Both take a float64 Gram matrix and, for the few pairs too close (or too nearly opposite) for it, the raw rows.
"""

import torch

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, half_angle_sine, residual_terms, unit_rows

ROWS = 512  # rows of the Gram matrix held at a time
PAIRS = 4096  # raw row pairs refined at a time
NEAR = {torch.float32: 2.0**-18, torch.float64: 2.0**-5}
"""A pair is refined when its squared distance is under this share of the squared norms' sum (its squared sine of the
half angle under half of it). Rounding in the float64 Gram matrix and norms is at most d 2^-53 of that sum each, so what
is kept is right to d 2^-35 (float32 results; 1.5e-8 at d = 512) or d 2^-48 (float64) at worst, and far better in the
mean."""


def run(x, y, names, radius, threads):
    """List of (n, m) distance matrices in the dtype of `x`, float32 or float64, one for each name."""
    del threads  # torch has its own setting
    wide_x, wide_y = x.double(), (x if y is None else y).double()
    out = [x.new_empty(len(wide_x), len(wide_y)) for _ in names]
    for begin in range(0, len(wide_x), ROWS):
        end = min(begin + ROWS, len(wide_x))
        left = begin if y is None else 0  # a symmetric matrix: its upper triangle is computed, then mirrored
        parts = _block(wide_x[begin:end], wide_y[left:], names, radius, NEAR[x.dtype])
        for matrix, part in zip(out, parts, strict=True):
            matrix[begin:end, left:] = part
    return [_mirrored(matrix) for matrix in out] if y is None else out


def _mirrored(matrix):
    upper = matrix.triu(1)
    diagonal = torch.diagonal(matrix)
    diagonal = torch.where(torch.isnan(diagonal), diagonal, torch.zeros_like(diagonal))
    return upper + upper.T + torch.diag(diagonal)


def _block(x, y, names, radius, near):
    gram = x @ y.T
    square_x, square_y = (x * x).sum(1)[:, None], (y * y).sum(1)[None]
    parts = {}
    if "raw" in names:
        square = (square_x + square_y) - 2 * gram
        rows, columns = (square < near * (square_x + square_y)).nonzero(as_tuple=True)
        for r, c in zip(rows.split(PAIRS), columns.split(PAIRS), strict=True):
            square[r, c] = (x[r] - y[c]).square().sum(1)
        parts["raw"] = torch.sqrt(square)
    angular = [name for name in names if GEOMETRIES[name].angular]
    if angular:
        sine, same_side = _half_angles(x, y, gram * (square_x.rsqrt() * square_y.rsqrt()), near)
        parts |= {name: GEOMETRIES[name].of_half_angle(sine, same_side, radius) for name in angular}
    for name in names:
        if name not in parts:
            parts[name] = _by_definition(x, y, GEOMETRIES[name], radius)
    return [parts[name] for name in names]


def _by_definition(x, y, geometry, radius):
    """The distances of a geometry that is known by its own function alone."""
    if geometry.directional:
        x, y = unit_rows(x), unit_rows(y)
    return geometry.between(x, y, radius)


def _half_angles(x, y, cosine, near):
    square = (1 - cosine.abs()) / 2
    rows, columns = (square < near / 2).nonzero(as_tuple=True)
    sine, same_side = torch.sqrt(square), cosine >= 0
    for r, c in zip(rows.split(PAIRS), columns.split(PAIRS), strict=True):
        sine[r, c] = half_angle_sine(x[r], y[c])[0]
    return sine, same_side


def gradient(grads, x, y, names, radius, distances):
    """(gradient for x, gradient for y or None): of sum_k <grads[k], D_names[k](x, y)>, float64.

    x, y        float64 rows (n, d), (m, d); y None for the distances of x to itself
    distances   {"raw": ..., "spherical": ...}: the float64 matrices, as far as they are needed
    Pairs at distance 0, and exactly opposite directions, contribute nothing.
    """
    other = x if y is None else y
    gx, gy = torch.zeros_like(x), torch.zeros_like(other)
    by_name = {name: g.double() for name, g in zip(names, grads, strict=True) if g is not None}
    if "raw" in by_name:
        _add_raw(by_name.pop("raw"), x, other, distances["raw"], gx, gy)
    if by_name:
        _add_angular(_angle_weight(by_name, distances["spherical"], radius), x, other, distances["spherical"], gx, gy)
    return (gx + gy, None) if y is None else (gx, gy)


def check_differentiable(names):
    """Refuse a geometry whose gradient nobody knows: neither raw nor one that gives its slope over the angle."""
    for name in names:
        if name != "raw" and GEOMETRIES[name].slope is None:
            raise UserError(
                f"distances of the geometry {name!r} have no gradient here (it gives no slope); call under "
                "torch.no_grad(), detach the rows, or differentiate geowidth.geometry.reference_distances"
            )


def _add_raw(grad, x, y, distance, gx, gy):
    weight = torch.where(distance == 0, 0, grad / distance)
    size = torch.linalg.vector_norm(x, dim=1)[:, None] + torch.linalg.vector_norm(y, dim=1)
    near = (weight != 0) & (distance < 1e-4 * size)
    for r, c in _pairs(near):
        step = weight[r, c][:, None] * (x[r] - y[c])
        gx.index_add_(0, r, step)
        gy.index_add_(0, c, -step)
    weight = torch.where(near, 0, weight)
    gx += weight.sum(1)[:, None] * x - weight @ y
    gy += weight.sum(0)[:, None] * y - weight.T @ x


def _angle_weight(by_name, angle, radius):
    """Derivative of the objective by the angle, by the chain rule."""
    weights = [grad * GEOMETRIES[name].slope(angle, radius) for name, grad in by_name.items()]
    return sum(weights[1:], weights[0])


def _add_angular(grad, x, y, angle, gx, gy):
    norm_x = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    norm_y = torch.linalg.vector_norm(y, dim=1, keepdim=True)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    weight = torch.where(angle == 0, 0, grad / sine)
    near = (sine < 1e-4) & (grad != 0) & (angle != 0)
    for r, c in _pairs(near):
        gx.index_add_(0, r, grad[r, c][:, None] * _away(x[r], y[c]))
        gy.index_add_(0, c, grad[r, c][:, None] * _away(y[c], x[r]))
    weight = torch.where(near, 0, weight)
    u, v = x / norm_x, y / norm_y
    turned = weight * cosine
    gx += (turned.sum(1)[:, None] * u - weight @ v) / norm_x
    gy += (turned.sum(0)[:, None] * v - weight.T @ u) / norm_y


def _away(a, b):
    """Gradient of the angle of a_i and b_i by a_i: the unit tangent at a_i pointing away from b_i, over |a_i|."""
    square_a = (a * a).sum(1)
    residual, _, square = residual_terms(b, a, square_a)
    length = torch.sqrt(square * square_a)[:, None]
    # Under 2^-98 of |b| the residual is rounding alone: opposite rows, where the angle has no gradient.
    parallel = square[:, None] < 2.0**-196 * (b * b).sum(1, keepdim=True)
    return torch.where(parallel, 0, -residual / length)


def _pairs(mask):
    rows, columns = mask.nonzero(as_tuple=True)
    return zip(rows.split(PAIRS), columns.split(PAIRS), strict=True)
