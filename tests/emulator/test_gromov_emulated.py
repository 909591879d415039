"""The CUDA kernels of Gromov-Wasserstein and the glue around them, run on the CPU: against plain float64, and against
the compiled CPU backend."""

import math

import numpy as np
import pytest
import torch

from geowidth.ops import costs
from geowidth.ops.costs import symmetry_facts
from geowidth.ops.gromov.bound import lower_bound, lower_bound_on_device
from geowidth.ops.gromov.cuda import CudaKernels
from geowidth.ops.gromov.operation import GROMOV_WASSERSTEIN, gromov_wasserstein
from geowidth.ops.gromov.pieces import centred
from geowidth.ops.linear_assignment.cuda import certificate
from geowidth.ops.linear_assignment.operation import ASSIGNMENT, assignment

pytestmark = pytest.mark.usefixtures("cuda_backend")
SIZES = (1, 2, 7, 31, 67, 131)
SEEDS = (1, 2, 3)


def on_gpu(operation):
    return next(b.run for b in operation.backends if b.name == "cuda")


def clouds(n, noise=0.5, seed=0, dtype=torch.float64, d=3):
    """Distances of a Gaussian cloud and of a noisy copy of it."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = x + noise * torch.randn(n, d, generator=g, dtype=torch.float64)
    return [torch.cdist(t, t, compute_mode="donot_use_mm_for_euclid_dist").to(dtype) for t in (x, y)]


def layouts(c, guarded):
    """The same matrix with rows back to back, at odd distances, and at multiples of 16 bytes."""
    n = len(c)
    for stride in (n, n + 3, (n + 7) // 4 * 4):
        whole = guarded.empty(n, stride, dtype=c.dtype)
        whole[:, :n] = c
        yield whole[:, :n]


@pytest.fixture(params=SEEDS)
def any_order(request, cuda_backend):
    """Threads and blocks in three orders."""
    cuda_backend.emulator.set_seed(request.param)


# ---- kernels


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", SIZES)
def test_centring(n, dtype, guarded):
    c = clouds(n, dtype=dtype)[0] + torch.eye(n, dtype=dtype) * 0.25
    expected, bits = centred(c), None
    for view in layouts(c, guarded):
        ours = CudaKernels(1).centred(view, view.clone())
        for one in ours:
            torch.testing.assert_close(one.d, expected.d, rtol=0, atol=1e-14)
            torch.testing.assert_close(one.m, expected.m, rtol=0, atol=1e-14)
            assert one.mean == pytest.approx(expected.mean, rel=1e-14)
            assert one.spread == pytest.approx(expected.spread, rel=1e-12, abs=1e-30)
            assert one.eccentricity == pytest.approx(expected.eccentricity, rel=1e-12, abs=1e-30)
            torch.testing.assert_close(one.squares, c.double().square().sum(1), rtol=1e-14, atol=0)
            assert not one.tidy
        bits = bits or ours[0].spread
        assert ours[0].spread == bits  # however the rows lie in memory
    assert all(one.tidy for one in CudaKernels(1).centred(*clouds(n, dtype=dtype)))
    assert not CudaKernels(1).centred(-c, c)[0].tidy


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", SIZES)
def test_sums_over_matched_pairs(n, dtype, guarded):
    a, b = clouds(n, dtype=dtype)
    g = torch.Generator().manual_seed(n)
    row, column = (guarded.like(torch.randperm(n, generator=g)) for _ in range(2))
    for p, q in ((None, None), (row, None), (None, column), (row, column)):
        matched = b if p is None else b[p]
        matched = matched if q is None else matched[:, q]
        expected = (a.double() - matched.double()).square().sum().item()
        found = {
            CudaKernels(1).square_difference(u, v, p, q)
            for u, v in zip(layouts(a, guarded), layouts(b, guarded), strict=True)
        }
        assert len(found) == 1 and found.pop() == pytest.approx(expected, rel=1e-13, abs=1e-30)


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", (1, 2, 31, 33, 67, 131))
def test_symmetry(n, dtype, guarded):
    c = clouds(n, dtype=dtype)[0] + 1
    c = (c + c.T) / 2
    for view in layouts(c, guarded):
        assert symmetry_facts(view).tolist() == [c.abs().max().item(), 0]
    if n == 1:
        return
    g = np.random.default_rng(n)
    for _ in range(3):
        i, j = g.choice(n, 2, replace=False)
        wrong = c.clone()
        wrong[i, j] -= 0.5
        largest, worst = symmetry_facts(wrong).tolist()
        assert largest == wrong.abs().max().item() and worst == (wrong.double() - wrong.T.double()).abs().max().item()
        for bad in (math.nan, math.inf, -math.inf):
            wrong[i, j] = bad
            assert symmetry_facts(wrong)[0] == math.inf


@pytest.mark.sanitized
@pytest.mark.parametrize("n", (1, 2, 7, 31, 67, 131))
def test_the_certificate_proves_what_is_optimal(n, any_order):
    g = np.random.default_rng(n)
    x = g.standard_normal((n, 4))
    gram = -x @ (x + 0.01 * g.standard_normal((n, 4))).T
    best = assignment(gram, backend="native").column
    spread = np.full((n, n), 1.0) - np.eye(n) + 0.1 * g.random((n, n))
    for cost, home in ((gram, best), (spread, torch.arange(n)), (-x @ x.T, torch.arange(n))):
        view = torch.full((n, n + 5), math.nan, dtype=torch.float64)[:, 2 : n + 2].copy_(torch.from_numpy(cost))
        found = certificate(view, home)
        exact = assignment(cost, start=home, backend="native")
        slack = view - found.row_dual[:, None] - found.column_dual
        assert torch.equal(found.column, home) and slack.min() >= -1e-14 * view.abs().max()
        assert found.cost == pytest.approx(exact.cost, rel=1e-12)
        assert found.bound == pytest.approx(exact.bound, abs=1e-11 * n * np.abs(cost).max())


@pytest.mark.parametrize("n", (2, 7, 31, 67))
def test_the_certificate_proves_nothing_else(n, any_order):
    cost = torch.from_numpy(np.random.default_rng(n).random((n, n)))
    worst = assignment(-cost, backend="native").column
    assert certificate(cost, worst) is None
    found = on_gpu(ASSIGNMENT)(cost, worst, None)
    assert found.cost == pytest.approx(assignment(cost, backend="native").cost, rel=1e-13)


@pytest.mark.parametrize("forbidden", (1e6, 1e18, 1e300))
@pytest.mark.parametrize("n", (2, 5, 7))
def test_the_certificate_beside_entries_that_stand_for_forbidden(n, forbidden, any_order):
    for seed in range(20):
        g = np.random.default_rng(seed)
        cost = torch.from_numpy(np.where(g.random((n, n)) < 0.3, forbidden, g.random((n, n))))
        exact = assignment(cost, backend="native")
        for start in (torch.arange(n), torch.from_numpy(g.permutation(n)), exact.column.clone()):
            found = on_gpu(ASSIGNMENT)(cost, start, torch.full((n,), forbidden, dtype=torch.float64))
            assert found.cost == pytest.approx(exact.cost, rel=1e-12)
            assert found.bound == pytest.approx(exact.cost, rel=1e-11)


def test_a_certificate_takes_the_sweeps_it_needs(cuda_backend):
    """A chain in which every dual hangs on the one before: n - 1 repairs, one a sweep."""
    for n, proved in ((4, True), (cuda_backend.most_sweeps, True), (2 * cuda_backend.most_sweeps + 2, False)):
        cost = torch.full((n, n), 100.0, dtype=torch.float64)
        rows = torch.arange(n)
        cost[rows, rows] = 0
        cost[rows[:-1], rows[1:]] = -1
        found = certificate(cost, rows)
        assert (found is not None) is proved
        assert found is None or found.bound == pytest.approx(0, abs=1e-12)


@pytest.mark.sanitized
@pytest.mark.parametrize("n", (1, 2, 5, 31, 37))
def test_the_best_exchange(n, any_order):
    c1, c2 = clouds(n, noise=2.0, seed=n)
    column = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    kernels = CudaKernels(1)
    one, two = kernels.centred(c1, c2)
    cost = -(one.d @ two.d[column]) / n - torch.outer(one.m, two.m)
    value = (c1 - c2[column][:, column]).square().mean()
    gains = [-math.inf]
    for i in range(n):
        for j in range(i):
            other = column.clone()
            other[[i, j]] = column[[j, i]]
            gains.append((value - (c1 - c2[other][:, other]).square().mean()).item())
    assert kernels.best_exchange(one.d, two.d, cost, column) == pytest.approx(max(gains), abs=1e-12)


# ---- the ops


def same(ours, theirs, relative=1e-9):
    assert torch.equal(ours.permutations, theirs.permutations)
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-6, atol=1e-9)
    names = "value identity lower scale eccentricity shape product_weight"
    scale = theirs.identity + theirs.eccentricity
    for name in names.split():
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=relative, abs=1e-13 * scale), name
    for name in ("gap", "identity_gap"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6, abs=1e-12 * scale), name
    assert (ours.start, ours.converged, ours.swaps) == (theirs.start, theirs.converged, theirs.swaps)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize(("n", "noise"), [(1, 0.5), (7, 0.05), (7, 2.0), (31, 0.05), (31, 0.5), (31, 2.0), (67, 0.5)])
def test_the_statistic_is_the_cpus(n, noise, dtype):
    c1, c2 = clouds(n, noise=noise, seed=n, dtype=dtype)
    options = {"tolerance": 1e-6, "max_iterations": 500, "swaps": n < 67, "threads": 1}
    for starts in ("auto", ("identity",)):
        ours = on_gpu(GROMOV_WASSERSTEIN)(c1, c2, starts=starts, **options)
        same(ours, gromov_wasserstein(c1, c2, starts=starts, backend="native", **options))


def test_relabelled_clouds_are_found(cuda_backend):
    c1, _ = clouds(53, seed=5)
    order = torch.randperm(53, generator=torch.Generator().manual_seed(5))
    c2 = c1[order][:, order].contiguous()
    found = on_gpu(GROMOV_WASSERSTEIN)(c1, c2, 1e-6, "auto", 500, True, 1)
    assert found.value == pytest.approx(0, abs=1e-20)
    assert torch.equal(order[found.permutations[0]], torch.arange(53))


def test_a_stationary_identity_never_leaves_the_device(monkeypatch):
    target = "geowidth.ops.linear_assignment.cuda.assignment_on_host"
    monkeypatch.setattr(target, lambda *_: pytest.fail("the costs were copied"))
    c1, c2 = clouds(67, noise=0.02, d=2)
    found = on_gpu(GROMOV_WASSERSTEIN)(c1, c2, 1e-6, "auto", 500, False, 1)
    assert found.converged and found.moved == 0 and found.iterations == 1


def test_the_order_of_threads_changes_no_bit(cuda_backend):
    c1, c2 = clouds(61, noise=0.5, seed=2)
    results = []
    for seed in SEEDS:
        cuda_backend.emulator.set_seed(seed)
        results.append(on_gpu(GROMOV_WASSERSTEIN)(c1, c2, 1e-6, ("identity",), 500, True, 1).to_json())
    assert results[0] == results[1] == results[2]


def test_assignments_are_optimal():
    g = np.random.default_rng(3)
    for n in (1, 2, 13, 64):
        for cost in (g.random((n, n)), g.integers(0, 3, (n, n)).astype(float), np.full((n, n), 2.5)):
            start, duals = torch.from_numpy(g.permutation(n)), torch.from_numpy(g.standard_normal(n))
            found = on_gpu(ASSIGNMENT)(torch.from_numpy(cost), start, duals)
            assert found.cost == pytest.approx(assignment(cost, backend="native").cost, abs=1e-13 * n)
            assert found.bound == pytest.approx(found.cost, abs=1e-12 * n)
    empty = on_gpu(ASSIGNMENT)(torch.empty(0, 0, dtype=torch.float64), torch.arange(0), None)
    assert empty.column.shape == (0,) and empty.cost == 0


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("n", (1, 2, 31, 64))
def test_the_lower_bound_on_a_device_is_the_cpus(n, dtype):
    c1, c2 = clouds(n, dtype=dtype)
    untidy = [c + 0.5 for c in (c1, c2)]
    for a, b in ((c1, c2), (c1, untidy[1]), untidy, (-c1, c2)):
        assert lower_bound_on_device(a, b) == pytest.approx(lower_bound(a, b), rel=1e-12, abs=1e-15)


def test_faults_are_told_from_few_numbers(monkeypatch):
    monkeypatch.setattr(costs.cuda_support, "why_not", lambda **_: None)
    c1, c2 = clouds(37, dtype=torch.float32)
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(costs.cuda_support, "why_not", lambda **_: "no GPU")
        assert costs._in_order_on_device(c1, c2, c1[:5, :5])
        for bad in (math.nan, math.inf, 9.0):
            wrong = c1.clone()
            wrong[4, 9] = bad
            assert not costs._in_order_on_device(c2, wrong)
        nearly = c1.clone()
        nearly[3, 5] *= 1 + 1e-6
        assert costs._in_order_on_device(nearly, c2)
