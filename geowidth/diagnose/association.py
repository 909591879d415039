"""Do measured signals predict fitted difficulties once depth is accounted for? Partial rank correlation."""

import itertools
import math
from functools import cache

import numpy as np
from scipy.stats import rankdata

FEWEST_LAYERS = 4  # with three, one degree of freedom is left to two residuals: they always agree or disagree
_EXACT_LAYERS = 8  # 8! = 40,320 orders
_DRAWS = 9_999


def partial_spearman(x, y, control):
    """(rho, p): Spearman's correlation of x and y with `control` partialled out, each of shape (n,).

    Ranks of x and y are replaced by their residuals from a line in the ranks of the control. p is two-sided: the share
    of orders of y whose correlation, formed in the same way, is at least as far from 0; of all orders for up to 8
    points, of 9,999 seeded ones beyond. So it is exact where y is not associated with x or the control. Every order
    loses the degrees of freedom of the control: orders of y's residuals alone would give a p that is too small.
    (None, None) where a residual has no spread: a constant signal, one that is a function of depth alone, or fewer than
    four points; and where a value is not a number. Infinite values rank last.

    Source: Draper and Stoneman, Technometrics 8 (1966), the method of permuting a variable with others in the model.
    """
    values = [np.asarray(v, dtype=np.float64) for v in (x, y, control)]
    if len(values[0]) < FEWEST_LAYERS or any(np.isnan(v).any() for v in values):
        return None, None
    ranks = [rankdata(v) for v in values]
    line = np.stack([np.ones(len(ranks[0])), ranks[2]], axis=1)
    apart = np.eye(len(line)) - line @ np.linalg.pinv(line)
    left, right = apart @ ranks[0], apart @ ranks[1]
    if min(np.abs(left).max(), np.abs(right).max()) < 1e-9:
        return None, None
    rho = _correlation(left, right[None, :])[0]
    draws = _correlation(left, ranks[1][_orders(len(left))] @ apart)
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
    """Correlation of residuals x (n,) with each of rows (m, n); rows without spread are left out."""
    squares = np.square(rows).sum(axis=1)
    spread = squares > 1e-18 * len(x) ** 3
    return (rows[spread] @ x) / np.sqrt(squares[spread] * (x @ x))
