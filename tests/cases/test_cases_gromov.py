"""Gromov-Wasserstein and assignment: numbers that must be right, costs that must not hang."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from geowidth import _native
from geowidth.errors import UserError
from geowidth.ops.gromov.descent import GromovProblem
from geowidth.ops.gromov.operation import gromov_wasserstein
from geowidth.ops.gromov.torch import TorchKernels
from geowidth.ops.linear_assignment.operation import assignment

BACKENDS = ("native", "torch")


def energy(c1, c2, plan):
    """E by its definition, four indices at once."""
    squares = (c1[:, None, :, None] - c2[None, :, None, :]) ** 2
    return float(np.einsum("ijkl,ij,kl->", squares, plan, plan))


def strong_row_means(g, n):
    """Symmetric costs m_i + m_j + s d_ij."""
    m, d = g.standard_normal(n), g.standard_normal((n, n))
    return m[:, None] + m + g.choice((0.1, 0.3, 1.0, 3.0)) * (d + d.T) / 2


def planar(g, n):
    points = g.standard_normal((n, 2))
    return np.linalg.norm(points[:, None] - points, axis=-1)


# ---- values


def test_bilinear_form_of_the_product_coupling():
    g = np.random.default_rng(0)
    for n in (3, 4, 6):
        a, b = strong_row_means(g, n), strong_row_means(g, n)
        problem, column = (
            GromovProblem(torch.tensor(a), torch.tensor(b), TorchKernels(1)),
            torch.tensor(g.permutation(n)),
        )
        squares = (a[:, None, :, None] - b[None, :, None, :]) ** 2
        permutation, product = np.eye(n)[column.numpy()] / n, np.full((n, n), 1 / n**2)
        expected = np.einsum("ijkl,ij,kl->", squares, product, permutation)
        assert problem.pair(None, column) == pytest.approx(expected, rel=1e-13)
        assert problem.pair(column, None) == problem.pair(None, column)
        assert problem.pair(None, None) == pytest.approx(energy(a, b, product), rel=1e-13)


@pytest.mark.parametrize(("backend", "count"), [("native", 1200), ("torch", 300)])
def test_value_is_E_of_the_coupling_for_strong_row_means(backend, count):
    for seed in range(count):
        g = np.random.default_rng(seed)
        n = int(g.integers(3, 7))
        a, b = strong_row_means(g, n), strong_row_means(g, n)
        found = gromov_wasserstein(a, b, backend=backend, threads=1)
        assert found.value == pytest.approx(energy(a, b, found.coupling().numpy()), rel=1e-12)
        assert found.scale + found.eccentricity + found.shape == pytest.approx(found.value, rel=1e-12)


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_value_where_symmetry_holds_up_to_rounding(dtype):
    for seed in range(100):
        g = np.random.default_rng(seed)
        noise = 1 + np.finfo(dtype).eps * g.integers(-2, 3, (2, 5, 5))
        a, b = (strong_row_means(g, 5) * noise).astype(dtype)
        found = gromov_wasserstein(a, b)
        expected = energy(a.astype(float), b.astype(float), found.coupling().numpy())
        assert found.value == pytest.approx(expected, rel=1e-11)
        assert found.scale + found.eccentricity + found.shape == pytest.approx(expected, rel=1e-11)
        assert 0 <= found.lower <= found.value


# ---- costs whose squares leave the range of numbers


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", (6e153, 1e153, 1e100, 1e-100, 1e-130, 1e-152))
def test_N18_scaled_costs_scale_the_result(scale, backend):
    g = np.random.default_rng(0)
    a, b = planar(g, 8), planar(g, 8)
    a, b = a / a.max(), b / b.max()
    base, found = gromov_wasserstein(a, b, backend=backend), gromov_wasserstein(a * scale, b * scale, backend=backend)
    for name in ("value", "identity", "lower", "scale", "eccentricity", "shape"):
        assert getattr(found, name) / scale / scale == pytest.approx(getattr(base, name), rel=1e-12, abs=1e-30)
    assert torch.equal(found.coupling(), base.coupling()) and found.converged


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", (1e308, 1e200, 1e160))
def test_N18_costs_too_large_for_their_squares_are_refused(scale, backend):
    d = planar(np.random.default_rng(0), 7)
    d *= scale / d.max()
    for pair in ((d, d / 2), (d, np.eye(7)), (np.zeros((7, 7)), d), (np.full((4, 4), scale), np.zeros((4, 4)))):
        with pytest.raises(UserError, match=r"c1 holds entries of up to .*entries up to 6.7e\+153 always fit"):
            gromov_wasserstein(*pair, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", (1e-155, 1e-160, 1e-200, 1e-310, 5e-324))
def test_N18_costs_too_small_for_their_squares_are_refused(scale, backend):
    d = scale * np.round(3 * planar(np.random.default_rng(0), 7))
    for pair in ((d, 2 * d), (d, 0 * d)):
        with pytest.raises(UserError, match="E is too small for float64; multiply both by the same number"):
            gromov_wasserstein(*pair, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", (1.7e308, 1e200, 1e-160, 1e-310))
def test_N18_equal_costs_have_value_zero_at_any_size(scale, backend):
    d = planar(np.random.default_rng(0), 7)
    for c in (np.full((5, 5), scale), d / d.max() * scale):
        found = gromov_wasserstein(c, c.copy(), backend=backend)
        assert found.value == found.identity == found.lower == 0 and found.converged


def test_the_smaller_costs_do_not_vanish_beside_ordinary_ones():
    d = planar(np.random.default_rng(0), 6)
    found = gromov_wasserstein(d, d * 1e-200)
    assert found.value == pytest.approx((d**2).mean(), rel=1e-13)
    assert math.isfinite(found.gap) and found.converged


# ---- assignment: neither a guess nor a start changes the result


def costs_of_every_size(g, n, kind):
    """Costs (n, n): ordinary ones, wide ranges, ties, and entries that stand for "forbidden"."""
    kinds = {
        "generic": lambda: g.random((n, n)),
        "negative": lambda: 57 * g.standard_normal((n, n)),
        "ties": lambda: g.integers(0, 3, (n, n)).astype(float),
        "wide": lambda: np.exp(8 * g.standard_normal((n, n))),
        "wider": lambda: np.exp(40 * g.standard_normal((n, n))),
        "scaled": lambda: g.random((n, n)) * 10.0 ** g.integers(-300, 300),
        "forbidden": lambda: np.where(g.random((n, n)) < 0.4, g.choice((1e6, 1e18, 1e300, -1e18)), g.random((n, n))),
        "forbidden start": lambda: g.random((n, n)) + g.choice((1e6, 1e18, 1e300)) * np.eye(n),
        "extremes": lambda: g.choice((0, 1e-320, 1e-300, 1.0, 1e300, -1e300), (n, n)),
    }
    return kinds[kind]()


KINDS = ("generic", "negative", "ties", "wide", "wider", "scaled", "forbidden", "forbidden start", "extremes")


def guess(g, n):
    """Column duals from nowhere."""
    makers = (
        lambda: None,
        lambda: g.choice((1e16, 1e18, -1e300, 1.7e308)) * np.ones(n),
        lambda: g.standard_normal(n) * 10.0 ** g.integers(-20, 300),
        lambda: g.choice((1e300, -1e300, 1, 0, 1.7e308, -1.7e308), n),
    )
    return makers[g.integers(4)]()


def check_assignment(found, cost, least):
    """Optimal to the rounding of the costs chosen, with duals that prove it."""
    n, column = len(cost), found.column.numpy()
    assert sorted(column) == list(range(n))
    own = cost[np.arange(n), column]
    size = np.abs(own).sum()
    assert found.cost == pytest.approx(own.sum(), rel=1e-12, abs=1e-15 * size)
    assert found.cost <= least + 1e-12 * size
    assert found.bound <= least + 1e-12 * size and found.bound >= found.cost - 1e-11 * size
    slack = cost - found.row_dual.numpy()[:, None] - found.column_dual.numpy()
    assert (slack >= -1e-14 * np.abs(cost).max()).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_guess_and_no_start_changes_the_assignment(kind, backend):
    for seed in range(150):
        g = np.random.default_rng(seed)
        n = int(g.integers(1, 7))
        cost = costs_of_every_size(g, n, kind)
        orders = np.array(list(itertools.permutations(range(n))))
        least = min(math.fsum(row) for row in cost[np.arange(n), orders])
        for start in (None, g.permutation(n)):
            check_assignment(assignment(cost, start=start, column_dual=guess(g, n), backend=backend), cost, least)


@pytest.mark.parametrize("size", (1e16, 1e18, 1e300))
def test_a_large_guess_at_larger_sizes(size):
    g = np.random.default_rng(0)
    for n in (20, 64):
        cost = 57 * g.standard_normal((n, n))
        best = cost[linear_sum_assignment(cost)].sum()
        for column_dual in (np.full(n, size), g.choice((size, -size, 0, 1), n), size * g.standard_normal(n)):
            check_assignment(assignment(cost, start=g.permutation(n), column_dual=column_dual), cost, best)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assignment_refuses_costs_whose_sums_overflow(backend):
    for cost in (1e308 * (1 - 2 * np.eye(2)), np.full((4, 4), 1.7e308), np.array([[0.0, -1e307], [1.0, 2.0]])):
        with pytest.raises(UserError, match=r"cost\[\d, \d\] is .*; sums of \d costs must be finite too"):
            assignment(cost, backend=backend)


def solve_natively(cost, column_dual=None):
    """The compiled solver on its own, without the checks of the op."""
    cost = torch.as_tensor(cost, dtype=torch.float64).contiguous()
    n, dual = len(cost), torch.zeros(len(cost), dtype=torch.float64)
    if column_dual is not None:
        dual.copy_(torch.as_tensor(column_dual))
    column, row_dual = torch.arange(n), torch.empty(n, dtype=torch.float64)
    _native.solve_assignment(cost, column_dual is not None, column, dual, row_dual)
    return column, row_dual


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
def test_the_compiled_assignment_refuses_what_is_not_finite(bad):
    for n in (1, 3, 17, 40):
        cost = torch.rand(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        wrong = cost.clone()
        wrong[n // 2, n - 1] = bad
        with pytest.raises(ValueError, match=f"row {n // 2} of the costs is not finite"):
            solve_natively(wrong)
        with pytest.raises(ValueError, match="column duals are not finite"):
            solve_natively(cost, [bad] + [0.0] * (n - 1))


def test_the_compiled_assignment_ends_where_differences_overflow():
    g, entries = np.random.default_rng(0), (1.7e308, -1.7e308, 0.0, 1.0, 1e308, -1e308)
    for turn in range(2000):
        n = int(g.integers(1, 12))
        try:
            column, row_dual = solve_natively(g.choice(entries, (n, n)), g.choice(entries, n) if turn % 2 else None)
        except OverflowError:
            continue
        assert sorted(column.tolist()) == list(range(n)) and torch.isfinite(row_dual).all()
