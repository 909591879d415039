"""The Sinkhorn kernels on a GPU, where there is one; tests/emulator runs the same sources everywhere."""

import pytest
import torch

from geowidth.ops import cuda_support
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.products import matmul_switch
from geowidth.ops.transport.cuda import CudaStep
from geowidth.ops.transport.torch import TorchStep

DEVICE = "cuda"
CLOSE = {torch.float32: 5e-5, torch.float64: 1e-10}

pytestmark = pytest.mark.skipif(
    cuda_support.why_not(cooperative=True) is not None, reason=str(cuda_support.why_not(cooperative=True))
)


def problem(n, m):
    """x (n, m), r, s, a, b in float64, on the GPU."""
    g = torch.Generator().manual_seed(n + m)
    a, b = (torch.rand(size, generator=g, dtype=torch.float64) + 0.1 for size in (n, m))
    r, s = (torch.randn(size, generator=g, dtype=torch.float64) for size in (n, m))
    x = torch.randn(n, m, generator=g, dtype=torch.float64)
    return [t.to(DEVICE) for t in (x, r, s, a / a.sum(), b / b.sum())]


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 257), (257, 1), (67, 13), (521, 1031), (1031, 2053), (997, 4099)])
def test_the_step_matches_the_log_domain_wherever_rows_lie(dtype, n, m):
    x, r, s, a, b = problem(n, m)
    expected = torch.zeros_like(x)
    TorchStep(r, s, a, b, 1)(x, 1.0, expected, 1e-13, 5000)
    narrow = [t.to(dtype) for t in (r, s, a, b)]
    found = []
    for rows in (None, 0, 1000, None):
        step = CudaStep(*narrow, 1, resident_rows=rows)
        step.g.fill_(60.0 if rows == 1000 else 0.0)  # potentials that do not fit
        plan = torch.zeros(n, m, dtype=dtype, device=x.device)
        error, *_ = step(x.to(dtype), 1.0, plan, CLOSE[dtype] / 5, 500)
        assert error <= CLOSE[dtype] / 5
        assert (plan.double() - expected).abs().sum().item() < 3 * CLOSE[dtype]
        assert (plan.double().sum(1) - a).abs().sum().item() < CLOSE[dtype]
        found.append(plan)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[3])


def test_tf32_switched_on_changes_no_bit():
    points = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    c = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    c1, c2 = c.to(DEVICE), c.flip(0, 1).to(DEVICE)
    plans = []
    for switch in (False, True):
        with matmul_switch(switch):
            plans.append(entropic_gromov_wasserstein(c1, c2, eps_rel=0.3, start="product").coupling)
    assert torch.equal(*plans)


def test_a_step_can_be_captured_in_a_graph():
    x, r, s, a, b = (t.float() for t in problem(131, 137))
    step, plan = CudaStep(r, s, a, b, 1), torch.zeros_like(x)
    step.launch(x, 1.0, plan, 1e-5, 100)
    expected = plan.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.launch(x, 1.0, plan, 1e-5, 100)
    plan.zero_()
    step.f.zero_(), step.g.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(plan, expected)
