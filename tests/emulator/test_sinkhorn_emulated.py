"""kernels/cuda/sinkhorn*.cu on the CPU: the step, and the ops on it through their own glue."""

import math

import pytest
import torch

from geowidth.ops.backend import Backend
from geowidth.ops.entropic.operation import ENTROPIC_GROMOV_WASSERSTEIN, entropic_gromov_wasserstein
from geowidth.ops.transport.cuda import CudaStep
from geowidth.ops.transport.native import NativeStep
from geowidth.ops.transport.operation import SINKHORN, sinkhorn
from geowidth.ops.transport.torch import TorchStep

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
CLOSE = {torch.float32: 2e-5, torch.float64: 1e-10}
DTYPES = list(TOLERANCE)


def problem(n, m, dtype, seed=0):
    """x (n, m), r, s, a, b."""
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(size, generator=g, dtype=torch.float64) + 0.1 for size in (n, m))
    r, s = (torch.randn(size, generator=g, dtype=torch.float64) for size in (n, m))
    x = torch.randn(n, m, generator=g, dtype=torch.float64)
    return [t.to(dtype) for t in (x, r, s, a / a.sum(), b / b.sum())]


def solved(step, x, scale, plan=None, tolerance=None, most=500):
    """(plan, what the step returned)."""
    plan = torch.zeros_like(x) if plan is None else plan
    tolerance = TOLERANCE[x.dtype] if tolerance is None else tolerance
    return plan, step(x, scale, plan, tolerance, most)


def reference(x, r, s, a, b, scale):
    """The coupling by Sinkhorn's iterations in the log domain, float64."""
    r, s, a, b = (t.double() for t in (r, s, a, b))
    step = TorchStep(r, s, a / a.sum(), b / b.sum(), 1)
    plan, (error, *_) = solved(step, x.double(), scale, tolerance=1e-13, most=20000)
    assert error <= 1e-13
    return plan


def check(found, x, r, s, a, b, scale, before, expected):
    """The plan against the reference, and the numbers returned against the plan."""
    plan, (error, passes, change, linear, entropy) = found
    close = CLOSE[x.dtype]
    wide = plan.double()
    assert (wide - expected).abs().sum() < 3 * close
    assert (wide.sum(1) - a.double()).abs().sum() < 0.1 * close
    assert error <= TOLERANCE[x.dtype] and passes >= 1
    assert (wide.sum(0) - b.double()).abs().sum() == pytest.approx(error, abs=0.1 * close)
    assert change == pytest.approx((wide - before.double()).abs().sum().item(), rel=1e-5)
    assert linear == pytest.approx((r.double() @ wide @ s.double()).item(), abs=close)
    assert entropy == pytest.approx((wide * wide.clamp(min=1e-300).log()).sum().item(), abs=10 * close)


SHAPES = [(1, 1, 1), (1, 13, 5), (13, 1, 2), (7, 31, 1), (61, 67, 5), (67, 13, 3), (29, 101, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m", "multiprocessors"), SHAPES)
def test_the_step_matches_the_log_domain(cuda_backend, dtype, n, m, multiprocessors):
    cuda_backend.emulator.set_device(multiprocessors)
    x, r, s, a, b = problem(n, m, dtype)
    expected = reference(x, r, s, a, b, 2.0)
    before = torch.rand(n, m).to(dtype)
    found = solved(CudaStep(r, s, a, b, 1), x, 2.0, before.clone())
    check(found, x, r, s, a, b, 2.0, before, expected)


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_shared_memory_or_not_and_thread_order_change_no_bit(cuda_backend, dtype):
    x, r, s, a, b = problem(61, 67, dtype)
    emulator, found, resident = cuda_backend.emulator, [], []
    emulator.set_device(2)
    less = CudaStep(r, s, a, b, 1, resident_rows=17).layout["shared_bytes"] + 3 * 68 * dtype.itemsize
    for seed, (rows, shared) in enumerate([(None, 232448), (0, 232448), (9, 232448), (None, less)]):
        emulator.set_seed(seed)
        emulator.set_device(2, shared)
        step = CudaStep(r, s, a, b, 1, resident_rows=rows)
        resident.append(step.layout["resident"])
        found.append(solved(step, x, 2.0))
    assert resident == [31, 0, 8, 16]
    for plan, numbers in found[1:]:
        assert torch.equal(plan, found[0][0]) and numbers == found[0][1]
    check(found[0], x, r, s, a, b, 2.0, torch.zeros_like(x), reference(x, r, s, a, b, 2.0))


WIDTHS = {torch.float32: {1031: 2, 2053: 4, 4099: 8, 8209: 0}, torch.float64: {521: 2, 1031: 4, 2053: 8, 4099: 0}}


@pytest.mark.parametrize(("dtype", "m"), [(dtype, m) for dtype in DTYPES for m in WIDTHS[dtype]])
def test_wide_rows(cuda_backend, dtype, m):
    n = 11
    x, r, s, a, b = problem(n, m, dtype)
    expected = reference(x, r, s, a, b, 0.3)
    plans = []
    for rows in (None, 4, 0):
        cuda_backend.emulator.set_device(2)
        step = CudaStep(r, s, a, b, 1, resident_rows=rows)
        assert step.layout["packs"] == WIDTHS[dtype][m] and step.layout["blocks"] == 2
        found = solved(step, x, 0.3)
        check(found, x, r, s, a, b, 0.3, torch.zeros_like(x), expected)
        plans.append(found[0])
    assert torch.equal(plans[0], plans[1]) and torch.equal(plans[0], plans[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", (math.nan, math.inf, -math.inf, 200.0, -1e3))
def test_potentials_that_do_not_fit(cuda_backend, dtype, wrong):
    cuda_backend.emulator.set_device(3)
    x, r, s, a, b = problem(23, 19, dtype)
    step = CudaStep(r, s, a, b, 1)
    step.f.fill_(wrong if abs(wrong) < 1e9 else 0)
    step.g.copy_(torch.where(torch.arange(19) % 3 == 0, wrong, 0.0))
    found = solved(step, x, 2.0)
    check(found, x, r, s, a, b, 2.0, torch.zeros_like(x), reference(x, r, s, a, b, 2.0))
    again = solved(step, x, 2.0)  # from the right ones
    assert again[1][1] <= 2 and torch.isfinite(step.f).all() and torch.isfinite(step.g).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sharp_kernel_takes_the_road_the_cpu_takes(cuda_backend, dtype):
    """Potentials absorbed several times, steps mixed, forgotten and refused: as many visits, and the same coupling."""
    cuda_backend.emulator.set_device(3)
    x, r, s, a, b = problem(47, 53, dtype)
    ours, theirs = (solved(step(r, s, a, b, 1), x, 25.0) for step in (CudaStep, NativeStep))
    assert ours[1][0] <= TOLERANCE[dtype] and ours[1][1] == pytest.approx(theirs[1][1], rel=0.2)
    assert (ours[0].double() - theirs[0].double()).abs().sum() < 300 * CLOSE[dtype]


def test_plain_iterations_are_sinkhorns(cuda_backend, monkeypatch):
    for backend in ("native", "cuda"):
        monkeypatch.setattr(f"geowidth.ops.transport.{backend}.ANDERSON_MEMORY", 0)
    x, r, s, a, b = problem(17, 29, torch.float64)
    for most in (1, 2, 5):
        ours, theirs = (solved(step(r, s, a, b, 1), x, 1.0, most=most) for step in (CudaStep, NativeStep))
        assert ours[1][1] == theirs[1][1] == most
        assert ours[1][0] == pytest.approx(theirs[1][0], rel=1e-9) and torch.allclose(ours[0], theirs[0], rtol=1e-12)


def test_few_visits_and_rounding_end_the_iterations(cuda_backend):
    cuda_backend.emulator.set_device(2)
    x, r, s, a, b = problem(17, 13, torch.float32)
    for most in (1, 3):
        plan, (error, passes, *_) = solved(CudaStep(r, s, a, b, 1), x, 2.0, tolerance=1e-30, most=most)
        assert passes == most and (plan.double().sum(1) - a.double()).abs().sum() < 1e-6
    _, (error, passes, *_) = solved(CudaStep(r, s, a, b, 1), x, 2.0, tolerance=1e-30, most=10000)
    assert error < 1e-6 and passes < 200
    _, (error, passes, *_) = solved(CudaStep(r, s, a, b, 1), x, 2.0, tolerance=-1, most=70)
    assert error < 1e-5 and passes == 70  # on and on, as a timing wants it


def test_a_step_is_three_launches_and_the_same_bits_twice(cuda_backend):
    x, r, s, a, b = problem(31, 37, torch.float32)
    cuda_backend.emulator.reset()
    first = solved(CudaStep(r, s, a, b, 1), x, 2.0)
    counts = cuda_backend.emulator.statistics()
    assert counts["launches"] == 3 and counts["cooperative_launches"] == 1
    again = solved(CudaStep(r, s, a, b, 1), x, 2.0)
    assert torch.equal(first[0], again[0]) and first[1] == again[1]


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m", "offset"), [(1, 1, 0), (16, 64, 0), (37, 41, 0), (16, 64, 1), (130, 260, 0)])
def test_inner_products_and_marginals(cuda_backend, guarded, dtype, n, m, offset):
    whole = torch.rand(2, n * m + offset).to(dtype)
    x, y = (part[offset:].view(n, m) for part in whole)
    x, y = (guarded.like(t) for t in (x, y)) if not offset else (x, y)
    _, r, s, a, b = problem(n, m, dtype)
    step = CudaStep(r, s, a, b, 1)
    expected = [(p.double() * q.double()).sum().item() for p, q in ((x, y), (x, x), (y, y))]
    assert step.inners((x, y), (x, x), (y, y)) == pytest.approx(expected, rel=1e-6)
    assert step.inner(x, y) == pytest.approx(expected[0], rel=1e-6)
    rows, columns = step.marginals(x)
    assert rows.dtype == torch.float64 and torch.allclose(rows, x.double().sum(1), rtol=1e-12)
    assert torch.allclose(columns, x.double().sum(0), rtol=1e-12)


def test_what_stays_in_an_h200s_shared_memory(emulated_cuda):
    shape = emulated_cuda.sinkhorn_shape_float32
    assert all(shape(n, n, -1)["resident"] == shape(n, n, -1)["rows"] for n in (1, 1000, 2732))
    assert shape(2733, 2733, -1)["resident"] < shape(2733, 2733, -1)["rows"]
    hybrid = shape(4096, 4096, -1)
    assert (hybrid["blocks"], hybrid["rows"], hybrid["resident"]) == (128, 32, 12)
    assert shape(4096, 4096, 0)["resident"] == 0 and hybrid["shared_bytes"] <= 232448


# ---- the ops, on CPU tensors


@pytest.fixture
def on_cuda(cuda_backend, monkeypatch):
    """Both ops' "cuda" backends serve the CPU."""
    cuda_backend.emulator.set_device(2)
    for operation in (SINKHORN, ENTROPIC_GROMOV_WASSERSTEIN):
        run = next(b.run for b in operation.backends if b.name == "cuda")
        monkeypatch.setattr(operation, "backends", (*operation.backends[:1], Backend("cuda", ("cpu",), run)))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
def test_sinkhorn_survives_small_eps_and_shifts(on_cuda, dtype, close):
    m = torch.tensor([[1000.0, 1001.0], [1001.0, 1000.0]], dtype=dtype)
    usual = sinkhorn(m, 1.0, tolerance=1e-12, backend="cuda")
    diagonal = 0.5 / (1 + math.exp(-1))
    assert usual.coupling[0].tolist() == pytest.approx([diagonal, 0.5 - diagonal], abs=close)
    assert diagonal == pytest.approx(0.3655293, abs=1e-7)
    assert usual.cost == pytest.approx(1000.2689414, abs=1e-6)
    sharp = sinkhorn(m, 1e-4, backend="cuda")
    assert sharp.coupling.tolist() == [[0.5, 0.0], [0.0, 0.5]] and sharp.converged
    shifted = sinkhorn(m.double() + 1e6, 1.0, tolerance=1e-12, backend="cuda")
    torch.testing.assert_close(shifted.coupling, usual.coupling.double(), atol=close, rtol=0)


@pytest.mark.parametrize("eps", (1e-10, 1e-3, 1e3, 1e300))
def test_sinkhorn_gives_no_nan(on_cuda, eps):
    m = torch.rand(19, 23, generator=torch.Generator().manual_seed(2))
    result = sinkhorn(m, eps, max_iterations=60, backend="cuda")
    assert torch.isfinite(result.coupling).all() and (result.coupling.sum(1) - 1 / 19).abs().max() < 1e-6


def clouds(n, dtype, d=8, seed=0):
    """Distances of a Gaussian cloud and of a noisy copy of it."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = x + 0.3 * torch.randn(n, d, generator=g, dtype=torch.float64)
    return [torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist").to(dtype) for p in (x, y)]


@pytest.mark.parametrize(
    ("dtype", "n", "rank", "eps_rel"),
    [
        (torch.float32, 53, 13, 0.5),
        (torch.float32, 41, 0, 0.2),
        (torch.float64, 40, 8, 1.0),
        (torch.float32, 40, 0, 1e-5),
    ],
)
def test_entropic_gromov_finds_what_the_native_backend_finds(on_cuda, dtype, n, rank, eps_rel):
    c1, c2 = clouds(n, dtype)
    settings = {"rank": rank, "eps_rel": eps_rel, "start": "identity", "max_iterations": 25, "tolerance": 1e-3}
    ours, theirs = (entropic_gromov_wasserstein(c1, c2, backend=name, **settings) for name in ("cuda", "native"))
    assert ours.converged == theirs.converged and ours.coupling.dtype == theirs.coupling.dtype
    assert ours.objective == pytest.approx(theirs.objective, rel=2e-5)
    assert ours.value == pytest.approx(theirs.value, rel=1e-4)
    assert ours.iterations == pytest.approx(theirs.iterations, abs=2)
    assert (ours.coupling - theirs.coupling).abs().sum() < 1e-3


def test_gap_of_one_and_three_and_equal_path_graphs(on_cuda):
    gap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    solve = entropic_gromov_wasserstein
    assert solve(gap, 3 * gap, eps=1e6, backend="cuda").value == pytest.approx(3.5, abs=1e-9)
    start = torch.tensor([[0.3, 0.2], [0.2, 0.3]], dtype=torch.float64)
    sharp = solve(gap, 3 * gap, eps=1.0, start=start, tolerance=1e-12, backend="cuda")
    assert sharp.coupling[0].tolist() == pytest.approx([0.4987254, 0.0012746], abs=1e-7)
    assert sharp.value == pytest.approx(2.0152564, abs=1e-6)
    i = torch.arange(50)
    c = ((i[:, None] - i).abs() * 31.7).float()
    assert 0 <= solve(c, c, eps_rel=1e-6, start="identity", backend="cuda").value <= 1e-3 * (c.double() ** 2).mean()
