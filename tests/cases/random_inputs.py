"""Random small inputs, ugly ones among them, and plain recomputations, for test_cases_recomputation."""

import itertools
import math
import os

import numpy as np
from scipy.optimize import linear_sum_assignment

COUNT = int(os.environ.get("GEOWIDTH_RANDOM_INPUTS", "2000"))


def generators(backend="native", share=1):
    """Seeded generators: COUNT // share, a tenth of that for a backend of plain torch, whose calls take 10 ms."""
    count = COUNT // share // (1 if backend == "native" else 10)
    return (np.random.default_rng([20261201, seed]) for seed in range(count))


def points(g, n, d=None):
    """Rows (n, d): in general position, on a grid, or with repetitions, exact and up to the last digits."""
    d = d or int(g.integers(1, 5))
    rows = g.integers(0, 3, (n, d)).astype(float) if g.random() < 0.25 else g.standard_normal((n, d))
    if g.random() < 0.3:
        rows = rows[g.integers(0, n, n)] * (1 + g.choice((0, 1e-15, 1e-6)) * g.standard_normal((n, d)))
    return rows


def metric(g, n):
    """Distances (n, n) of such rows: symmetric to the bit."""
    rows = points(g, n)
    return np.linalg.norm(rows[:, None] - rows, axis=-1)


def strong_row_means(g, n):
    m, d = g.standard_normal(n), g.standard_normal((n, n))
    return m[:, None] + m + g.choice((0.1, 0.3, 1.0, 3.0)) * (d + d.T) / 2


def costs(g, n):
    """A symmetric matrix: metric or not, with strong row means, ties, zeros, or nothing but one number."""
    kind = g.integers(7)
    if kind == 0:
        return strong_row_means(g, n)
    if kind == 1:
        ties = g.integers(-1, 3, (n, n)).astype(float)
        return np.triu(ties) + np.triu(ties, 1).T
    if kind == 2:
        return np.full((n, n), g.choice((0.0, 1.0, -2.5)))
    if kind == 3:
        d = g.standard_normal((n, n))
        return d + d.T
    return metric(g, n)


def cost_pair(g, n, m=None):
    """Two cost matrices (n, n) and (m, m) of one dtype, from 1e-12 to 1e12, symmetric at least up to rounding."""
    a = costs(g, n)
    if m is None and g.random() < 0.3:  # the same space in another order, moved a little or not at all
        order = g.permutation(n)
        b = a[order][:, order] * (1 + g.choice((0, 1e-9, 1e-2)))
    else:
        b = costs(g, m or n)
    dtype = g.choice((np.float32, np.float64))
    scale = 10.0 ** g.uniform(-12, 12)
    pair = [(c * scale).astype(dtype) for c in (a, b * g.choice((1, 1, 1e-3, 30)))]
    if g.random() < 0.3:
        pair = [c * (1 + np.finfo(dtype).eps * g.integers(-1, 2, c.shape)).astype(dtype) for c in pair]
    return pair


def energy(c1, c2, plan):
    """sum_ijkl (c1_ik - c2_jl)^2 T_ij T_kl by its definition."""
    squares = (c1[:, None, :, None].astype(float) - c2[None, :, None, :].astype(float)) ** 2
    return float(np.einsum("ijkl,ij,kl->", squares, plan, plan))


def gap(c1, c2, plan):
    """The conditional-gradient gap of a coupling of uniform weights."""
    squares = (c1[:, None, :, None] - c2[None, :, None, :]) ** 2
    gradient = np.einsum("ijkl,kl->ij", squares, plan) + np.einsum("klij,kl->ij", squares, plan)
    least = gradient[linear_sum_assignment(gradient)].mean()
    return (gradient * plan).sum() - least


def weights(g, n):
    """Weights (n,) with a wide spread, or None for uniform ones; and the same as numbers."""
    if g.random() < 0.4:
        return None, np.full(n, 1 / n)
    w = np.exp(g.choice((0.3, 1.5)) * g.standard_normal(n))
    return w / w.sum(), w / w.sum()


def distance_matrix(g, n):
    """Symmetric, non-negative, zero diagonal: ties, zeros, missing edges, no triangle inequality."""
    kind = g.integers(5)
    values = {0: lambda: g.integers(0, 4, (n, n)), 1: lambda: g.random((n, n)), 2: lambda: g.integers(1, 3, (n, n))}
    if kind > 2:
        return metric(g, n) * 10.0 ** g.uniform(-12, 12)
    upper = np.triu(values[kind](), 1).astype(float)
    if g.random() < 0.3:
        upper[np.triu(g.random((n, n)) < 0.3, 1)] = math.inf
    return upper + upper.T


def degree_one_bars(distances):
    """Degree-one Vietoris-Rips bars by the plain reduction of the boundary matrix, sorted."""
    n = len(distances)
    diameter = {}
    for size in (1, 2, 3):
        for simplex in itertools.combinations(range(n), size):
            longest = max((distances[i, j] for i, j in itertools.combinations(simplex, 2)), default=0.0)
            if math.isfinite(longest):
                diameter[simplex] = longest
    order = sorted(diameter, key=lambda s: (diameter[s], len(s), s))
    place = {simplex: k for k, simplex in enumerate(order)}
    lowest, creates, bars = {}, set(), []
    for k, simplex in enumerate(order):
        column = (
            {place[face] for face in itertools.combinations(simplex, len(simplex) - 1)} if len(simplex) > 1 else set()
        )
        while column and max(column) in lowest:
            column = column ^ lowest[max(column)]
        if column:
            lowest[max(column)] = column
            if len(simplex) == 3:
                bars.append((diameter[order[max(column)]], diameter[simplex]))
        elif len(simplex) == 2:
            creates.add(k)
    bars += [(diameter[order[k]], math.inf) for k in creates if k not in lowest]
    return np.array(sorted(b for b in bars if b[0] < b[1])).reshape(-1, 2)


def diagram(g):
    """Up to six bars: ties, bars of length zero, some that never die; from 1e-12 to 1e12."""
    size = int(g.integers(0, 7))
    if g.random() < 0.4:
        bars = g.integers(0, 4, (size, 2)).cumsum(1).astype(float)
    else:
        bars = np.stack([g.random(size), np.zeros(size)], 1)
        bars[:, 1] = bars[:, 0] + g.exponential(0.2, size) * g.choice((1, 1, 1e-9, 20), size)
    bars[g.random(size) < 0.15, 1] = math.inf
    return bars
