"""Rank stability against what is known of ranks, and against scipy."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from geowidth.cascade import rank_stability
from geowidth.errors import UserError


def test_one_order_and_its_reverse():
    same = rank_stability([[1, 2, 3, 4], [10, 20, 30, 1e9], [-4, -3, -2, -1]])
    assert (same.draws, same.spearman, same.kendall, same.same_first) == (3, 1, 1, 1)
    assert (same.least_spearman, same.least_kendall) == (1, 1)
    turned = rank_stability([[1, 2, 3, 4], [4, 3, 2, 1]])
    assert (turned.spearman, turned.kendall, turned.same_first) == (-1, -1, 0)


def test_all_orders_have_nothing_in_common():
    """Over all permutations correlations with a fixed order sum to 0, and half of a half is shared."""
    rows = [list(row) for row in permutations(range(4))]
    found = [rank_stability([rows[0], row]) for row in rows]
    assert np.mean([one.spearman for one in found]) == pytest.approx(0, abs=1e-12)
    assert np.mean([one.kendall for one in found]) == pytest.approx(0, abs=1e-12)
    assert np.mean([one.same_first for one in found]) == pytest.approx(0.5)


def test_means_and_least_of_pairs(rng):
    rows = rng.integers(0, 4, (5, 7)).astype(float)  # ties among them
    found, pairs = rank_stability(rows), list(combinations(rows, 2))
    spearman = [stats.spearmanr(*pair).statistic for pair in pairs]
    assert (found.spearman, found.least_spearman) == pytest.approx((np.mean(spearman), min(spearman)))
    counted = [kendall(*pair) for pair in pairs]
    assert (found.kendall, found.least_kendall) == pytest.approx((np.mean(counted), min(counted)))


def kendall(x, y):
    """tau-b by counting pairs."""
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in combinations(range(len(x)), 2)]
    agree = sum(a * b for a, b in signs)
    return agree / np.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))


def test_scores_without_spread_and_single_draws():
    flat = rank_stability([[1, 1, 1], [1, 1, 1]])
    assert (flat.spearman, flat.least_kendall, flat.same_first) == (None, None, 1)
    assert rank_stability([[1, 2]]).to_json() == {"draws": 1} | dict.fromkeys(
        ("spearman", "least_spearman", "kendall", "least_kendall", "same_first")
    )
    for wrong in ([], [[1], [2]], [1, 2]):
        with pytest.raises(UserError, match="two blocks or more"):
            rank_stability(wrong)
    for wrong in ([[1, float("nan")]] * 2, [[1, 2], [1, 2, 3]]):
        with pytest.raises(UserError, match=r"draw \d of scores"):
            rank_stability(wrong)
