"""Do measured signals predict fitted difficulties once depth is accounted for? Partial rank correlation."""

import itertools
import math
from functools import cache

import numpy as np
from scipy.stats import rankdata

_EXACT_LAYERS = 8  # 8! = 40,320 orders
_DRAWS = 9_999


def partial_spearman(x, y, control):
    """(rho, p): Spearman's correlation of x and y with `control` partialled out, each of shape (n,).

    Ranks of x and y are replaced by their residuals from a line in the ranks of the control. p is two-sided, from all
    orders of y's residuals for up to 8 points and from 9,999 seeded ones beyond (Freedman and Lane 1983). (None, None)
    where a residual has no spread: a constant signal, or one that is a function of depth alone, or fewer than four
    points; and where a value is not a number. Infinite values rank last.
    """
    values = [np.asarray(v, dtype=np.float64) for v in (x, y, control)]
    if len(values[0]) < 4 or any(np.isnan(v).any() for v in values):
        return None, None
    ranks = [rankdata(v) for v in values]
    line = np.stack([np.ones(len(ranks[0])), ranks[2]], axis=1)
    left, right = (r - line @ np.linalg.lstsq(line, r, rcond=None)[0] for r in ranks[:2])
    if min(np.abs(left).max(), np.abs(right).max()) < 1e-9:
        return None, None
    rho = _correlation(left, right[None, :])[0]
    draws = _correlation(left, right[_orders(len(left))])
    at_least = int((np.abs(draws) >= abs(rho) - 1e-12).sum())
    exact = len(left) <= _EXACT_LAYERS
    return float(rho), at_least / len(draws) if exact else (at_least + 1) / (len(draws) + 1)


@cache
def _orders(count):
    if count <= _EXACT_LAYERS:
        every = itertools.chain.from_iterable(itertools.permutations(range(count)))
        return np.fromiter(every, dtype=np.int64, count=count * math.factorial(count)).reshape(-1, count)
    generator = np.random.default_rng(0)
    return np.stack([generator.permutation(count) for _ in range(_DRAWS)])


def _correlation(x, rows):
    """Pearson correlation of x (n,) with each of rows (m, n)."""
    x = x - x.mean()
    rows = rows - rows.mean(axis=1, keepdims=True)
    return (rows @ x) / np.sqrt(np.square(rows).sum(axis=1) * (x @ x))
