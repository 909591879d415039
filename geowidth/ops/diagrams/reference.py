"""The distance of two diagrams as one linear assignment of bars and of their places on the diagonal, by scipy."""

import math

import numpy as np

from geowidth.inputs import ArrayLike


def match_scipy(a, b, ground):
    """(distance, partner) of finite bars (k, 2), (m, 2) float64: partner (k,) int64 in b, -1 for none.

    Bars and, for every bar of the other diagram, a place on the diagonal: a (k + m, k + m) matrix of squared costs.
    """
    from scipy.optimize import linear_sum_assignment

    scale = max(_largest(a), _largest(b)) or 1.0  # squares of the scaled bars stay in float64
    a, b = a / scale, b / scale
    k, m = len(a), len(b)
    cost = np.zeros((k + m, m + k))
    cost[:k, :m] = _apart(a[:, None] - b, ground) ** 2
    cost[:k, m:], cost[k:, :m] = (_to_diagonal(a, ground) ** 2)[:, None], _to_diagonal(b, ground) ** 2
    rows, columns = linear_sum_assignment(cost)
    partner = np.where(columns[:k] < m, columns[:k], -1)
    return scale * math.sqrt(cost[rows, columns].sum()), partner.astype(np.int64)


def diagram_distance_reference(a: ArrayLike, b: ArrayLike, ground: str = "sup") -> float:
    """The 2-Wasserstein distance of diagrams (k, 2) and (m, 2); bars that never die are matched in order of birth."""
    a, b = (np.asarray(bars, dtype=np.float64).reshape(-1, 2) for bars in (a, b))
    endless = [np.sort(bars[np.isinf(bars[:, 1]), 0]) for bars in (a, b)]
    if len(endless[0]) != len(endless[1]):
        return math.inf
    first, second = (bars[np.isfinite(bars[:, 1])] for bars in (a, b))
    finite = match_scipy(first, second, ground)[0]
    return math.hypot(finite, *(endless[0] - endless[1]))


def _largest(bars):
    return float(np.abs(bars).max(initial=0))


def _apart(difference, ground):
    """Lengths of differences of bars (..., 2) in the ground norm."""
    return np.abs(difference).max(-1) if ground == "sup" else np.hypot(difference[..., 0], difference[..., 1])


def _to_diagonal(bars, ground):
    half = (bars[:, 1] - bars[:, 0]) / 2
    return half if ground == "sup" else half * math.sqrt(2)
