"""Partial Spearman: theorems, an independent formula, exact p-values."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from geowidth.diagnose.association import partial_spearman


def test_the_formula_from_three_correlations(rng):
    x, y, z = rng.normal(size=(3, 12))
    xy, xz, yz = (spearmanr(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    assert partial_spearman(x, y, z)[0] == pytest.approx(expected, abs=1e-12)


def test_depth_alone_is_no_association(rng):
    depth = np.arange(10.0)
    assert partial_spearman(depth**2, rng.normal(size=10), depth) == (None, None)
    assert partial_spearman(np.ones(10), rng.normal(size=10), depth) == (None, None)
    assert partial_spearman([1, 2, 3], [1, 3, 2], [1, 2, 3]) == (None, None)


def test_monotone_changes_and_signs(rng):
    x, y, depth = rng.normal(size=9), rng.normal(size=9), np.arange(9.0)
    rho, p = partial_spearman(x, y, depth)
    assert partial_spearman(np.exp(x), y**3, depth) == (pytest.approx(rho), p)
    assert partial_spearman(-x, y, depth)[0] == pytest.approx(-rho)
    assert partial_spearman(x, x, depth)[0] == pytest.approx(1.0)


def test_exact_p_over_all_orders(rng):
    x, y, depth = rng.normal(size=6), rng.normal(size=6), np.arange(6.0)

    def formula(other):
        xy, xz, yz = (spearmanr(a, b).statistic for a, b in ((x, other), (x, depth), (other, depth)))
        return (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)) if yz**2 < 1 - 1e-9 else None

    rho, p = partial_spearman(x, y, depth)
    draws = [formula(y[list(order)]) for order in itertools.permutations(range(6))]
    draws = np.array([draw for draw in draws if draw is not None])
    assert len(draws) == 718 and p == pytest.approx(np.mean(np.abs(draws) >= abs(rho) - 1e-9))


def test_sampled_p_is_seeded_and_small_for_strong_association(rng):
    x = rng.normal(size=20)
    y = x + 0.1 * rng.normal(size=20)
    first, second = partial_spearman(x, y, np.arange(20)), partial_spearman(x, y, np.arange(20))
    assert first == second and first[1] < 0.001


def test_what_is_no_number_is_not_ranked(rng):
    x, y, depth = rng.normal(size=9), rng.normal(size=9), np.arange(9.0)
    x[3] = np.nan
    assert partial_spearman(x, y, depth) == (None, None)
    x[3] = np.inf
    large = np.where(np.isinf(x), 1e9, x)
    assert partial_spearman(x, y, depth) == partial_spearman(large, y, depth)
