"""Thread orders change no bit, where a race would not show by itself: iterations mend a wrong number that one let in,
and blocks that take one piece of work each need no barrier between two."""

import math

import pytest
import torch

from geowidth.ops.costs import symmetry_facts
from geowidth.ops.gromov.cuda import CudaKernels
from geowidth.ops.transport.cuda import CudaStep

SEEDS = range(3)


def sinkhorn_problem(n, m, dtype):
    """x (n, m), r, s, a, b."""
    g = torch.Generator().manual_seed(7)
    a, b = (torch.rand(size, generator=g, dtype=torch.float64) + 0.1 for size in (n, m))
    r, s = (torch.randn(size, generator=g, dtype=torch.float64) for size in (n, m))
    x = torch.randn(n, m, generator=g, dtype=torch.float64)
    return [t.to(dtype) for t in (x, r, s, a / a.sum(), b / b.sum())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("scale", "wrong"), [(2, 0), (2, 200), (2, math.nan), (50, 0), (100, 0)])
def test_sinkhorn(cuda_backend, dtype, scale, wrong):
    """From good potentials, from some that overflow and some that are no numbers, and with sharp kernels, for which
    steps are mixed, refused and taken back."""
    x, r, s, a, b = sinkhorn_problem(23, 19, dtype)
    found = []
    for seed in SEEDS:
        cuda_backend.emulator.set_device(5)
        cuda_backend.emulator.set_seed(seed)
        step, plan = CudaStep(r, s, a, b, 1), torch.zeros_like(x)
        step.g[::3] = wrong
        numbers = step(x, scale, plan, 1e-5 if dtype is torch.float32 else 1e-11, 500)
        found.append([plan, step.f.clone(), step.g.clone(), torch.tensor(numbers, dtype=torch.float64)])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def best_exchange(d1, d2, cost, column):
    """The largest decrease by one exchange of two partners, in torch."""
    n = len(cost)
    moved, own = cost[:, column], cost.gather(1, column[:, None])[:, 0]
    slope = own[:, None] + own - moved - moved.T
    sizes = [d.diagonal()[:, None] + d.diagonal() - 2 * d for d in (d1, d2[column][:, column])]
    decrease = 4 / n * slope + 2 / n**2 * sizes[0] * sizes[1]
    return decrease.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf).max().item()


def test_blocks_that_take_several_tiles(cuda_backend):
    """More pairs of tiles than blocks."""
    n = 1500
    g = torch.Generator().manual_seed(7)
    c1, c2 = (torch.cdist(x, x) for x in (torch.randn(n, 3, generator=g, dtype=torch.float64) for _ in range(2)))
    c1, c2 = (torch.triu(c, 1) + torch.triu(c, 1).T for c in (c1, c2))
    wrong = c1.clone()
    wrong[1473, 1211] += 0.5
    kernels, column = CudaKernels(1), torch.randperm(n, generator=g)
    cost = -(c1 @ c2[column]) / n
    for seed in SEEDS[:2]:
        cuda_backend.emulator.set_seed(seed)
        before = cuda_backend.emulator.statistics()["blocks"]
        assert symmetry_facts(c1).tolist() == [c1.max().item(), 0]
        used = cuda_backend.emulator.statistics()["blocks"] - before
        assert used < (n // 32 + 1) * (n // 32 + 2) // 2, "a block for every pair of tiles tests nothing"
        assert symmetry_facts(wrong).tolist() == [wrong.max().item(), (wrong - wrong.T).max().item()]
        found = kernels.best_exchange(c1, c2, cost, column)
        assert found == pytest.approx(best_exchange(c1, c2, cost, column), rel=1e-12)
