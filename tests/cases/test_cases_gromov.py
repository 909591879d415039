"""Gromov-Wasserstein and assignment: numbers that must be right, costs that must not hang."""

import math

import numpy as np
import pytest
import torch

from geowidth.errors import UserError
from geowidth.ops.gromov import gromov_wasserstein
from geowidth.ops.gromov_descent import Problem
from geowidth.ops.gromov_kernels import TorchKernels

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
        problem, column = Problem(torch.tensor(a), torch.tensor(b), TorchKernels(1)), torch.tensor(g.permutation(n))
        squares = (a[:, None, :, None] - b[None, :, None, :]) ** 2
        permutation, product = np.eye(n)[column.numpy()] / n, np.full((n, n), 1 / n**2)
        expected = np.einsum("ijkl,ij,kl->", squares, product, permutation)
        assert problem.pair(None, column) == pytest.approx(expected, rel=1e-13)
        assert problem.pair(column, None) == problem.pair(None, column)
        assert problem.pair(None, None) == pytest.approx(energy(a, b, product), rel=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_value_is_E_of_the_coupling_for_strong_row_means(backend):
    for seed in range(1200):
        g = np.random.default_rng(seed)
        n = int(g.integers(3, 7))
        a, b = strong_row_means(g, n), strong_row_means(g, n)
        found = gromov_wasserstein(a, b, backend=backend)
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
