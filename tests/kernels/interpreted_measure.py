"""Run by test_measure_interpreted.py in a process of its own: the Triton kernels of distances and of Sinkhorn's
iterations, with TRITON_INTERPRET=1 on CPU tensors, without it on a GPU.

Each name on the command line is one check; it prints "name ok", or fails loudly.
"""

import math
import os
import sys
import warnings
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from distance_oracle import assert_accurate, cloud  # noqa: E402

from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS, chord_scale, reference_distances  # noqa: E402
from geowidth.kernels import distances, sinkhorn  # noqa: E402
from geowidth.ops import pairwise_distances  # noqa: E402
from geowidth.ops.distances.torch import NEAR  # noqa: E402
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein  # noqa: E402
from geowidth.ops.transport import triton as entropic_triton  # noqa: E402
from geowidth.ops.transport.operation import sinkhorn as optimal_transport  # noqa: E402
from geowidth.ops.transport.torch import TorchStep  # noqa: E402

# numpy, which stands in for the GPU, reports what a GPU does silently with numbers that nobody reads.
warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TOLERANCE = {torch.float32: 6e-7, torch.float64: 2e-13}
generator = torch.Generator().manual_seed(20260802)


def poisoned(function, *arguments):
    """function(*arguments) with every new buffer full of NaN (integers: of a large number)."""
    empty, new_empty = torch.empty, torch.Tensor.new_empty

    def fill(tensor):
        return tensor.fill_(math.nan if tensor.is_floating_point() else 2**30)

    torch.empty = lambda *a, **k: fill(empty(*a, **k))
    torch.Tensor.new_empty = lambda *a, **k: fill(new_empty(*a, **k))
    try:
        return function(*arguments)
    finally:
        torch.empty, torch.Tensor.new_empty = empty, new_empty


def compute(x, y=None, **options):
    """pairwise_distances on DEVICE, results on the CPU."""
    x, y = x.to(DEVICE), None if y is None else y.to(DEVICE)
    found = poisoned(lambda: pairwise_distances(x, y, backend="triton", **options))
    return {name: matrix.cpu() for name, matrix in found.items()} if isinstance(found, dict) else found.cpu()


# ---------------------------------------------------------------- distances


def check_distances(x, y, tolerance=None):
    """All geometries at once against extended precision, and each alone against all at once."""
    found = compute(x, y, geometry="all")
    for name, matrix in found.items():
        assert matrix.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
        other = (x if y is None else y).double()
        assert_accurate(matrix, x.double(), other, name, tolerance or TOLERANCE[matrix.dtype])
        if y is None:
            assert torch.equal(matrix, matrix.T) and (matrix.diagonal() == 0).all()
    return found


def distances_in_every_dtype():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for n, m, d in ((1, 1, 1), (2, 3, 1), (37, 5, 3), (67, 29, 31)):
            x, y = cloud(generator, n, d, dtype), cloud(generator, m, d, dtype, offset=0.1)
            y[0] = x[0]
            check_distances(x, y)
            check_distances(x, None)


def distances_of_one_geometry():
    x, y = cloud(generator, 41, 7), cloud(generator, 35, 7)
    for other in (None, y):
        found = compute(x, other, geometry="all")
        for names in (["raw"], ["spherical"], ["hyperbolic"], ["hyperbolic", "raw"]):
            some = compute(x, other, geometry=names)
            assert list(some) == names and all(torch.equal(some[name], found[name]) for name in names)


def distances_of_near_pairs():
    for dtype, n, d in ((torch.float32, 43, 37), (torch.float64, 43, 19)):
        x = torch.randn(n, d, generator=generator, dtype=torch.float64) + 2
        for separation in (1e-2, 1e-4, 1e-6):  # near pairs everywhere: whole tiles
            y = x[:1] + separation * torch.randn(n, d, generator=generator, dtype=torch.float64)
            check_distances(y.to(dtype), None, 6e-7 if dtype == torch.float32 else 1e-11)
        x[40:] = x[1:4] * torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)  # few: one by one
        x[5] = x[30] + 1e-6 * x[6]
        check_distances(x.to(dtype), None, 6e-7 if dtype == torch.float32 else 1e-11)
        check_distances(x.to(dtype), (-3 * x[:17]).to(dtype), 6e-7 if dtype == torch.float32 else 1e-11)
    wide = torch.randn(3, 2 * distances.COLUMNS + 1, generator=generator)  # longer than a step of the loop
    wide[1] = wide[0] * 1.0001
    check_distances(wide, None)
    massive = torch.randn(40, 13, generator=generator)
    massive[:, 3] += 1e4
    massive[7] *= 300
    check_distances(massive, None)


def distances_of_hostile_rows():
    assert compute(torch.tensor([[700001.0]]), torch.tensor([[700100.0]])).item() == 99.0
    small = compute(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-4]]), geometry="spherical").item()
    assert abs(small / 9.9999997e-5 - 1) < 1e-6
    opposite = compute(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[-1.0, -2.0, -3.0]]), geometry="all")
    assert opposite["spherical"].item() == torch.tensor(math.pi, dtype=torch.float32).item()
    large = compute(torch.tensor([[1e30, 1.0]]), torch.tensor([[-1e30, 1.0]])).item()  # its square is not a float32
    assert abs(large / 2e30 - 1) < 1e-6
    tiny = compute(torch.tensor([[1e-30]]), torch.tensor([[3e-30]])).item()
    assert abs(tiny / 2e-30 - 1) < 1e-6
    x = torch.randn(37, 5, generator=generator)
    x[3, 2], x[35, 0] = math.nan, math.inf
    finite = torch.ones(37, dtype=torch.bool)
    finite[[3, 35]] = False
    for name, matrix in compute(x, geometry="all").items():
        assert not matrix[~finite].isfinite().any() and not matrix[:, ~finite].isfinite().any()
        assert_accurate(matrix[finite][:, finite], x[finite], x[finite], name, 6e-7)
    for shape in ((0, 3), (0, 0)):
        assert compute(torch.zeros(shape)).shape == (0, 0)
    assert compute(torch.zeros(0, 3), torch.ones(5, 3), geometry="all")["hyperbolic"].shape == (0, 5)
    assert torch.equal(compute(torch.zeros(5, 0), torch.zeros(4, 0)), torch.zeros(5, 4))
    assert torch.equal(compute(torch.zeros(5, 2)), torch.zeros(5, 5))


def distances_from_another_gram():
    """The kernels take a Gram matrix of any float type, here one whose two triangles differ in the last bits."""
    x = torch.randn(35, 11, generator=generator)
    gram = x @ x.T
    gram = torch.where(torch.ones_like(gram).tril(-1) > 0, gram * (1 + 1e-6), gram)
    square, scale = (x.double() ** 2).sum(1), torch.full((1,), chord_scale(HYPERBOLIC_RADIUS), dtype=torch.float64)
    found = {name: torch.full((35, 35), math.nan, device=DEVICE) for name in GEOMETRIES}
    given = [t.to(DEVICE) for t in (gram, x, x, square, square, scale)]
    distances.run(*given, found, near=NEAR[x.dtype], symmetric=True, processors=2)
    for name, matrix in found.items():
        matrix = matrix.cpu()
        torch.testing.assert_close(matrix.double(), reference_distances(x, geometry=name), rtol=1e-4, atol=0)
        assert torch.equal(matrix, matrix.T)


# ---------------------------------------------------------------- Sinkhorn


def problem(n, m, dtype=torch.float64, spread=0.5):
    """x, r, s, a, b of `dtype`."""
    x, r, s = (spread * torch.randn(size, generator=generator, dtype=torch.float64) for size in ((n, m), n, m))
    a, b = (torch.rand(size, generator=generator, dtype=torch.float64) + 0.5 for size in (n, m))
    return [t.to(dtype) for t in (x, r, s, a / a.sum(), b / b.sum())]


def solve(x, r, s, a, b, scale, tolerance, most=200):
    """(step, plan on the CPU, what the step returned)."""
    x, r, s, a, b = (t.to(DEVICE) for t in (x, r, s, a, b))
    step = poisoned(entropic_triton.TritonStep, r, s, a, b, 1)
    plan = torch.outer(a, b)
    found = step(x, scale, plan, tolerance, most)
    return step, plan.cpu(), found


def check_step(n, m, dtype):
    given = problem(n, m, dtype)
    step, plan, (error, passes, change, linear, entropy) = solve(*given, 1.5, FINE[dtype])
    x, r, s, a, b = (t.double() for t in given)
    expected = torch.outer(a, b)
    reference = TorchStep(r, s, a, b, 1)(x, 1.5, expected, 1e-13, 2000)
    assert error <= FINE[dtype] and 1 <= passes < 200
    assert (plan.double() - expected).abs().sum() < 50 * FINE[dtype]
    assert (plan.double().sum(1) - a).abs().sum() < 5 * FINE[dtype]
    for mine, theirs in zip((change, linear, entropy), reference[2:], strict=True):
        assert abs(mine - theirs) < 100 * FINE[dtype]
    rebuilt = torch.exp(1.5 * (x + torch.outer(r, s)) + step.f.cpu().double()[:, None] + step.g.cpu().double())
    torch.testing.assert_close(rebuilt, plan.double(), rtol=1e4 * FINE[dtype], atol=0)
    one, two = given[0].to(DEVICE), plan.to(DEVICE)
    product = step.inner(one, two)
    assert abs(product - (x * plan.double()).sum().item()) < 1e-12
    assert step.inners((two, two), (one, two))[1] == product
    again = solve(*given, 1.5, FINE[dtype])
    assert torch.equal(again[1], plan) and again[2] == (error, passes, change, linear, entropy)


FINE = {torch.float32: 1e-6, torch.float64: 1e-11}


def sinkhorn_steps():
    for dtype in (torch.float32, torch.float64):
        for n, m in ((1, 1), (1, 7), (31, 37)):
            check_step(n, m, dtype)


def sinkhorn_of_long_rows():
    held, looped, enter = sinkhorn.HELD, sinkhorn.LOOPED, sinkhorn.ENTER
    sinkhorn.HELD, sinkhorn.LOOPED, sinkhorn.ENTER = {4: 16, 8: 16}, (2, 16), (2, 16)
    check_step(7, 21, torch.float32)
    sinkhorn.HELD, sinkhorn.LOOPED, sinkhorn.ENTER = held, looped, enter


def sinkhorn_of_hostile_costs():
    for dtype, close in ((torch.float32, 2e-4), (torch.float64, 1e-9)):
        cost = torch.tensor([[1000.0, 1001.0], [1001.0, 1000.0]], dtype=dtype)
        half, nothing = torch.full((2,), 0.5, dtype=dtype), torch.zeros(2, dtype=dtype)
        for shift, scale, wanted in ((0.0, 1.0, 0.5 / (1 + math.exp(-1))), (0.0, 1e4, 0.5), (1e6, 1.0, None)):
            if wanted is None and dtype == torch.float32:
                continue
            plan = solve(-cost - shift, nothing, nothing, half, half, scale, 1e-7)[1]
            diagonal = 0.5 / (1 + math.exp(-scale)) if wanted is None else wanted
            assert abs(plan[0, 0].item() - diagonal) < close and abs(plan[0, 1].item() - 0.5 + diagonal) < close
        # The second column is far from every row: its mass underflows unless maxima are taken out.
        plan = solve(torch.tensor([[0.0, -1.0], [0.0, -1.0]], dtype=dtype), nothing, nothing, half, half, 1e4, 1e-6)[1]
        torch.testing.assert_close(plan, torch.full((2, 2), 0.25, dtype=dtype))
        for scale in (1e-6, 1e2, 1e4):
            given = problem(11, 17, dtype, spread=3.0)
            _, plan, found = solve(*given, scale, 1e-6, 30)
            assert plan.isfinite().all() and all(map(math.isfinite, found)) and found[1] <= 31
            assert (plan.double().sum(1) - given[3].double()).abs().sum() < 1e-5


def sinkhorn_of_tiny_weights():
    """Products of weights leave the range of float32: passes without maxima give way to those with them."""
    a, b = torch.tensor([1e-25, 0.5, 0.5]), torch.tensor([1e-25, 0.25, 0.75])
    x = torch.tensor([[0.0, -600.0, -600.0], [0.0, -300.0, -299.5], [0.0, -299.75, -300.0]])
    nothing, entered = torch.zeros(3), []
    enter = sinkhorn.Buffers.enter
    sinkhorn.Buffers.enter = lambda self, *arguments: (entered.append(0), enter(self, *arguments))
    _, plan, found = solve(x, nothing, nothing, a, b, 1.0, 1e-6, 60)
    sinkhorn.Buffers.enter = enter
    assert len(entered) > 2
    assert plan.isfinite().all() and all(map(math.isfinite, found)) and found[0] <= 1e-6
    assert ((plan.sum(0) - b).abs() < 1e-6).all() and abs(plan[0].sum().item() / 1e-25 - 1) < 1e-5
    once = solve(x, nothing, nothing, a, b, 1.0, 1e-6, 1)[2]
    assert once[1] == 1 and math.isfinite(once[0])


def sinkhorn_of_slow_costs():
    """Mass that has to go down a chain, link by link: plain passes take three times as many."""
    i = torch.arange(7, dtype=torch.float64)
    x, nothing = -1.5 * (i[:, None] - i) ** 2, torch.zeros(7, dtype=torch.float64)
    a, b = (i + 1) / (i + 1).sum(), (i.flip(0) + 1 + i % 3) / (i.flip(0) + 1 + i % 3).sum()
    _, plan, (error, passes, *_) = solve(x, nothing, nothing, a, b, 1.0, 1e-8, 200)
    expected = torch.zeros_like(x)
    TorchStep(nothing, nothing, a, b, 1)(x, 1.0, expected, 1e-13, 3000)
    assert error <= 1e-8 and (plan - expected).abs().sum() < 1e-6
    linear, entropic_triton.LINEAR = entropic_triton.LINEAR, 0.0
    assert solve(x, nothing, nothing, a, b, 1.0, 1e-8, 2 * passes)[2][0] > 1e-8
    entropic_triton.LINEAR = linear


def sinkhorn_op():
    cost = torch.tensor([[1000.0, 1001.0], [1001.0, 1000.0]], dtype=torch.float64)
    result = optimal_transport(cost.to(DEVICE), 1.0, tolerance=1e-12, backend="triton")
    assert result.converged and abs(result.cost - 1000.2689414) < 1e-6
    assert optimal_transport(cost.to(DEVICE), 1e-4, backend="triton").coupling.tolist() == [[0.5, 0.0], [0.0, 0.5]]
    cost = torch.rand(7, 5, generator=generator)
    ours, native = (optimal_transport(cost.to(d), 1.0, backend=b) for d, b in ((DEVICE, "triton"), ("cpu", "native")))
    assert ours.coupling.dtype == torch.float32 and ours.converged
    torch.testing.assert_close(ours.coupling.cpu(), native.coupling, atol=1e-8, rtol=1e-6)
    potentials = ours.row_potential[:, None] + ours.column_potential - cost.to(DEVICE).double()
    torch.testing.assert_close(potentials.exp().float(), ours.coupling)


def sinkhorn_warm_start():
    given = problem(23, 29)
    step, plan, first = solve(*given, 2.0, 1e-10)
    again = step(given[0].to(DEVICE) + 1e-6, 2.0, plan.to(DEVICE), 1e-8, 200)
    assert again[1] < first[1] and again[2] < 1e-8


# ---------------------------------------------------------------- the whole op


def pair(n, m=None, dtype=torch.float64):
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x if m is None else torch.randn(m, 3, generator=generator, dtype=torch.float64)
    y = y + 0.3 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    return [torch.cdist(t, t, compute_mode="donot_use_mm_for_euclid_dist").to(dtype) for t in (x, y)]


def entropic_gromov():
    gap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64, device=DEVICE)
    assert abs(entropic_gromov_wasserstein(gap, 3 * gap, eps=1e6, backend="triton").value - 3.5) < 1e-9
    start = torch.tensor([[0.3, 0.2], [0.2, 0.3]], dtype=torch.float64)
    sharp = entropic_gromov_wasserstein(gap, 3 * gap, eps=1.0, start=start, tolerance=1e-9, backend="triton")
    assert abs(sharp.coupling[0, 0].item() - 0.4987254) < 1e-7 and abs(sharp.value - 2.0152564) < 1e-6
    for n, m, dtype, settings, close in (
        (7, 5, torch.float64, dict(eps_rel=3.0, tolerance=1e-6), 1e-5),
        (13, None, torch.float32, dict(eps_rel=1.5, rank=3, start="identity"), 1e-4),
    ):
        costs = pair(n, m, dtype)
        native = entropic_gromov_wasserstein(*costs, **settings, backend="native")
        ours = entropic_gromov_wasserstein(*(c.to(DEVICE) for c in costs), **settings, backend="triton")
        assert ours.converged and (ours.coupling.cpu() - native.coupling).abs().sum() < 10 * close
        assert abs(ours.objective / native.objective - 1) < close and abs(ours.value / native.value - 1) < 10 * close


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        generator.manual_seed(20260802)  # a check's numbers do not depend on those before it
        globals()[name]()
        print(name, "ok", flush=True)
