"""The Gromov-Wasserstein statistic: closed forms, invariances, bounds, and POT's exact solver as the rival."""

import math

import numpy as np
import pytest
import torch

from geowidth import _native
from geowidth.errors import UserError
from geowidth.ops.gromov.operation import gromov_wasserstein

BACKENDS = ("native", "torch")


def distances(points):
    return torch.cdist(torch.as_tensor(points), torch.as_tensor(points), compute_mode="donot_use_mm_for_euclid_dist")


def clouds(n, d=3, noise=0.5, seed=0):
    """Distances of a Gaussian cloud and of a noisy copy of it, float64."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = x + noise * torch.randn(n, d, generator=g, dtype=torch.float64)
    return distances(x), distances(y)


def energy(c1, c2, plan):
    """E by its definition, four indices at once."""
    difference = (c1[:, None, :, None] - c2[None, :, None, :]) ** 2
    return torch.einsum("ijkl,ij,kl->", difference, plan, plan).item()


# ---- values


def test_two_points_with_gaps_one_and_three():
    gap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    result = gromov_wasserstein(gap, 3 * gap)
    assert result.value == result.identity == pytest.approx(2.0, abs=1e-15)
    assert result.gw == pytest.approx(math.sqrt(2)) and result.gap == 0 and result.converged
    assert result.scale == pytest.approx(1.0) and result.eccentricity == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("scale", (3, 31.7))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_equal_path_graphs_have_value_zero(scale, dtype):
    i = torch.arange(250)
    c = ((i[:, None] - i).abs() * scale).to(dtype)
    result = gromov_wasserstein(c, c.clone())
    assert result.value == 0 == result.identity == result.lower == result.shape and result.moved == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", (1, 2, 3, 5, 8, 9, 13))
def test_value_is_the_energy_of_the_coupling(n, backend):
    c1, c2 = clouds(n, seed=n)
    result = gromov_wasserstein(c1, c2, backend=backend)
    plan = result.coupling()
    torch.testing.assert_close(plan.sum(0), torch.full((n,), 1 / n, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(1), torch.full((n,), 1 / n, dtype=torch.float64))
    assert result.value == pytest.approx(energy(c1, c2, plan), rel=1e-12, abs=1e-15)
    assert result.identity == pytest.approx((c1 - c2).square().mean().item(), rel=1e-12, abs=1e-15)
    assert result.scale + result.eccentricity + result.shape == pytest.approx(result.value, rel=1e-10, abs=1e-15)
    assert min(result.scale, result.eccentricity, result.shape, result.gap, result.lower) >= 0


def test_value_of_a_mixture_is_the_energy_of_the_coupling():
    g = torch.Generator().manual_seed(3)
    a, b = torch.rand(2, 11, 11, generator=g, dtype=torch.float64)
    result = gromov_wasserstein(a + a.T, b + b.T, starts="product", max_iterations=3)
    assert len(result.weights) > 1 or result.product_weight > 0
    assert result.value == pytest.approx(energy(a + a.T, b + b.T, result.coupling()), rel=1e-12)
    assert result.scale + result.eccentricity + result.shape == pytest.approx(result.value, rel=1e-10)


def test_a_flat_space_leaves_nothing_to_choose():
    c1, c2 = torch.zeros(7, 7, dtype=torch.float64), clouds(7)[1]
    result = gromov_wasserstein(c1, c2)
    assert result.value == pytest.approx(c2.square().mean().item()) == pytest.approx(result.lower, rel=1e-9)
    assert result.gap == pytest.approx(0, abs=1e-14) and result.converged


# ---- theorems


@pytest.mark.parametrize("noise", (0.0, 0.1, 1.0, 10.0))
@pytest.mark.parametrize("n", (2, 7, 31, 64))
def test_lower_value_identity_in_order(n, noise):
    c1, c2 = clouds(n, noise=noise, seed=n)
    result = gromov_wasserstein(c1, c2)
    assert 0 <= result.lower <= result.value <= result.identity * (1 + 1e-14)
    assert (result.value == 0) == (noise == 0)


@pytest.mark.parametrize("n", (5, 16, 53))
def test_isometric_relabelled_spaces_are_found(n):
    c1, _ = clouds(n, seed=n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    result = gromov_wasserstein(c1, c1[order][:, order])
    assert result.value == pytest.approx(0, abs=1e-20) and result.identity > 0.1
    assert torch.equal(order[result.permutations[0]], torch.arange(n))


def test_scaling_and_swapping():
    c1, c2 = clouds(40, noise=1.0)
    base = gromov_wasserstein(c1, c2)
    scaled = gromov_wasserstein(7 * c1, 7 * c2)
    assert scaled.value == pytest.approx(49 * base.value, rel=1e-12)
    assert scaled.lower == pytest.approx(49 * base.lower, rel=1e-9)
    assert torch.equal(scaled.permutations, base.permutations)
    swapped = gromov_wasserstein(c2, c1)
    assert (swapped.identity, swapped.scale) == pytest.approx((base.identity, base.scale), rel=1e-12)


def test_relabelling_both_clouds_changes_nothing():
    c1, c2 = clouds(45, noise=0.3)
    order = torch.randperm(45, generator=torch.Generator().manual_seed(1))
    base = gromov_wasserstein(c1, c2)
    again = gromov_wasserstein(c1[order][:, order], c2[order][:, order])
    assert again.identity == pytest.approx(base.identity, rel=1e-12)
    assert again.identity_gap == pytest.approx(base.identity_gap, rel=1e-9, abs=1e-14)
    assert again.value == pytest.approx(base.value, rel=1e-3)  # exchanges are met in another order


@pytest.mark.parametrize("noise", (0.05, 0.3, 1.0, 3.0))
@pytest.mark.parametrize("n", (8, 23, 64))
def test_never_above_the_exact_solver_of_pot(n, noise):
    ot = pytest.importorskip("ot")
    for seed in range(3):
        c1, c2 = clouds(n, noise=noise, seed=seed)
        ours = gromov_wasserstein(c1, c2, starts=("identity", "product"))
        a, b = c1.numpy(), c2.numpy()
        rivals = [ot.gromov.gromov_wasserstein2(a, b), ot.gromov.gromov_wasserstein2(a, b, G0=np.eye(n) / n)]
        assert ours.value <= min(rivals) * (1 + 1e-9)
        assert ours.converged and ours.gap <= 1e-6 * ours.value


@pytest.mark.parametrize("n", (12, 30))
def test_gap_is_the_conditional_gradient_gap(n):
    from scipy.optimize import linear_sum_assignment

    c1, c2 = clouds(n, noise=1.0)
    result = gromov_wasserstein(c1, c2, starts="identity", swaps=False)
    for plan, gap in ((torch.eye(n, dtype=torch.float64) / n, result.identity_gap), (result.coupling(), result.gap)):
        gradient = -4 * (c1 @ plan @ c2).numpy()
        rows, columns = linear_sum_assignment(gradient)
        expected = (gradient * plan.numpy()).sum() - gradient[rows, columns].sum() / n
        assert gap == pytest.approx(expected, abs=1e-12 * np.abs(gradient).max())


def test_exchanges_only_help_and_end_where_none_helps():
    c1, c2 = clouds(20, d=8, noise=4.0)
    plain = gromov_wasserstein(c1, c2, starts="identity", swaps=False)
    better = gromov_wasserstein(c1, c2, starts="identity")
    assert better.value <= plain.value and better.swaps > 0 and better.gap <= 1e-6 * better.value
    column = better.permutations[0]
    for i in range(20):
        for j in range(i):
            other = column.clone()
            other[[i, j]] = column[[j, i]]
            assert (c1 - c2[other][:, other]).square().mean() >= better.value * (1 - 2e-6)


# ---- the ways in


@pytest.mark.parametrize("n", (30, 67))
def test_backends_agree(n):
    c1, c2 = clouds(n, noise=0.3)
    native, plain = (gromov_wasserstein(c1, c2, starts="identity", swaps=False, backend=b) for b in BACKENDS)
    assert torch.equal(native.permutations, plain.permutations)
    numbers = [(r.value, r.identity, r.identity_gap, r.lower, r.scale, r.shape) for r in (native, plain)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ("cuda", "torch"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("noise", (0.05, 0.5))
@pytest.mark.parametrize("n", (1, 7, 67, 257))
def test_a_gpu_gives_the_cpus_result_and_keeps_it(n, noise, dtype, backend):
    c1, c2 = (c.to(dtype) for c in clouds(n, noise=noise, seed=n))
    theirs = gromov_wasserstein(c1, c2, starts="identity", swaps=False)
    ours = gromov_wasserstein(c1.cuda(), c2.cuda(), starts="identity", swaps=False, backend=backend)
    assert ours.permutations.is_cuda and ours.weights.is_cuda and ours.coupling().is_cuda
    assert torch.equal(ours.permutations.cpu(), theirs.permutations) and ours.moved == theirs.moved
    numbers = [(r.value, r.identity, r.lower, r.scale, r.eccentricity, r.shape) for r in (ours, theirs)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-13 * theirs.identity)
    assert gromov_wasserstein(c1.cuda(), c2.cuda(), backend=backend).value <= theirs.value * (1 + 1e-9)
    for bad in (math.nan, math.inf):
        wrong = c2.cuda()
        wrong[-1, 0] = bad
        with pytest.raises(UserError, match=rf"c2\[{n - 1}, 0\] is"):
            gromov_wasserstein(c1.cuda(), wrong, backend=backend)


def test_dtypes_and_strides():
    c1, c2 = clouds(33)
    base = gromov_wasserstein(c1.float(), c2.float())
    wide = gromov_wasserstein(c1.float().double(), c2.float().double())
    assert wide.value == base.value and torch.equal(wide.permutations, base.permutations)
    spaced = torch.full((66, 70), math.nan)
    spaced[::2, ::2][:33, :33] = c1.float()
    assert gromov_wasserstein(spaced[::2, ::2][:33, :33], c2.float().T).value == base.value
    assert gromov_wasserstein(c1.float().numpy(), c2.float().numpy()).value == base.value
    whole = (10 * c1).round()
    assert gromov_wasserstein(whole.int(), whole.to(torch.bfloat16).int()).value == 0


def test_thread_count_changes_no_bit_of_the_native_sums():
    from geowidth.ops.gromov.native import NativeKernels

    c1, c2 = clouds(101)
    order = torch.randperm(101)
    sums = {NativeKernels(t).square_difference(c1, c2, order, order) for t in (1, 2, 3, 8)}
    assert len(sums) == 1
    results = [gromov_wasserstein(c1, c2, threads=t) for t in (1, 2)]
    assert torch.equal(results[0].permutations, results[1].permutations)
    assert results[0].value == results[1].value


@pytest.mark.parametrize("n", (1, 2, 7, 23, 24, 25, 191, 193, 211))
def test_the_own_product(n):
    g = torch.Generator().manual_seed(n)
    a, b = torch.randn(2, n, n, generator=g, dtype=torch.float64)
    u, v = torch.randn(2, n, generator=g, dtype=torch.float64)
    row = torch.randperm(n, generator=g)
    for permutation in (None, row):
        expected = 0.3 * a @ (b if permutation is None else b[row]) - torch.outer(u, v)
        found = []
        for threads in (1, 2, 5):
            out = torch.full((n, n), math.nan, dtype=torch.float64)
            _native.scaled_product(a, b, permutation, u, v, 0.3, out, threads)
            found.append(out)
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-14 * n + 1e-15)
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_either_product_gives_the_same_result(monkeypatch):
    from geowidth.ops.gromov.native import NativeKernels
    from geowidth.ops.gromov.pieces import PlainPieces

    class Always:
        def __getattr__(self, name):
            return (lambda: True) if name == "own_product_pays" else getattr(_native, name)

    def with_own(kernels, *arguments):
        kernels.module = Always()
        return own(kernels, *arguments)

    own, results = NativeKernels.gradient, []
    for gradient in (with_own, PlainPieces.gradient):
        monkeypatch.setattr(NativeKernels, "gradient", gradient)
        for starts in ("identity", ("identity", "product")):
            results.append(gromov_wasserstein(*clouds(50, noise=0.5), starts=starts))
    for ours, theirs in zip(results[:2], results[2:], strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-12) and ours.iterations == theirs.iterations
        assert torch.equal(ours.permutations, theirs.permutations)


def test_the_start_is_reported():
    c1, c2 = clouds(70, noise=0.05)
    assert gromov_wasserstein(c1, c2).start == "identity"
    product = gromov_wasserstein(c1, c2, starts="product")
    assert product.start == "product" and product.identity == pytest.approx((c1 - c2).square().mean().item())
    assert product.to_json()["value"] == product.value


def square(**cells):
    c = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    for cell, value in cells.items():
        c[int(cell[1]), int(cell[2])] = value
    return c


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("c1", "c2", "words"),
    [
        (square(c00=math.nan), square(), r"c1\[0, 0\] is nan"),
        (square(c12=math.inf), square(), r"c1\[1, 2\] is inf"),
        (square(), square(c20=-math.inf), r"c2\[2, 0\] is -inf"),
        (square(), square(c02=2.5), r"c2 is not symmetric: c2\[0, 2\] is 2.5 but c2\[2, 0\] is 2"),
        (square()[:2], square(), r"c1 has shape \(2, 3\)"),
        (square(), square()[0], r"c2 has shape \(3,\)"),
        (square()[:0, :0], square(), "c1 is empty"),
        (square(), square()[:2, :2], "c1 has 3 points and c2 2"),
        (square(), square().double(), "c1 is float32 and c2 float64"),
        (square().to(torch.complex64), square(), "c1 is complex64"),
        (square(), square().to("meta"), "c2 is on the meta device"),
    ],
)
def test_bad_matrices_are_refused(c1, c2, words, backend):
    with pytest.raises(UserError, match=words):
        gromov_wasserstein(c1, c2, backend=backend)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tolerance": -1}, "tolerance is -1"),
        ({"tolerance": math.nan}, "tolerance is nan"),
        ({"starts": "middle"}, "allowed: auto, identity, product"),
        ({"starts": ()}, r"starts is \(\); name at least one"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"backend": "cuda"}, "allowed: native, torch"),
    ],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        gromov_wasserstein(square(), square(), **arguments)
