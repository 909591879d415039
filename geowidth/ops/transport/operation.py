"""Entropic optimal transport between two weighted sets, by Sinkhorn's iterations with Anderson acceleration.

min <M, T> + eps KL(T | a b') over couplings T of a and b (Cuturi, NeurIPS 2013). The iterations run on the kernel and
absorb what would leave the range of numbers into the potentials; the log domain serves to enter safely.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from geowidth import inputs
from geowidth.errors import MOST, UserError, positive, whole
from geowidth.inputs import ArrayLike, refuse_entry
from geowidth.ops import cuda_support, triton_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.costs import weights
from geowidth.ops.threads import thread_count
from geowidth.ops.transport.cuda import CudaStep
from geowidth.ops.transport.native import NativeStep
from geowidth.ops.transport.reference import sinkhorn_reference
from geowidth.ops.transport.torch import TorchStep
from geowidth.ops.transport.triton import TritonStep

LEAST_EPS = 1e-12  # of the cost's range
SMALLEST, LARGEST = 1e-300, 1e300  # beyond, eps or 1 / eps comes near the end of float64


@dataclass(frozen=True)
class SinkhornResult:
    """coupling (n, m) = exp((row_potential_i + column_potential_j - cost_ij) / eps), its cost <cost, coupling>, the sum
    of absolute deviations of its column sums (rows are exact), visits of the kernel, and whether the tolerance was
    met."""

    coupling: torch.Tensor
    cost: float
    row_potential: torch.Tensor
    column_potential: torch.Tensor
    marginal_error: float
    iterations: int
    converged: bool


def sinkhorn(
    cost: ArrayLike,
    eps: float,
    a: ArrayLike | None = None,
    b: ArrayLike | None = None,
    *,
    tolerance: float = 1e-9,
    max_iterations: int = 10000,
    threads: int | None = None,
    backend: str | None = None,
) -> SinkhornResult:
    """Entropic optimal transport for cost (n, m), torch or numpy: a SinkhornResult, its tensors on the cost's device.

    Computed in float64; the coupling comes back in the cost's dtype (float32 or float64). a (n,), b (m,): positive
    weights, default uniform. A constant added to the cost, or to a row or a column of it, changes no coupling. eps must
    be at least 1e-12 of the cost's range (row and column minima taken off). Raises UserError naming the argument and
    bad index.
    """
    threads, eps = thread_count(threads), positive("eps", eps)
    tolerance = positive("tolerance", tolerance)
    max_iterations = whole("max_iterations", max_iterations, 1, MOST)
    cost = inputs.tensor("cost", cost).detach()
    if cost.ndim != 2 or 0 in cost.shape:
        raise UserError(f"cost has shape {tuple(cost.shape)}; (n, m), not empty, is needed")
    refuse_entry("cost", cost, ~torch.isfinite(cost), "all entries must be finite")
    a, b = weights(a, cost.shape[0], "a", cost.device), weights(b, cost.shape[1], "b", cost.device)
    chosen = SINKHORN.choose(cost.device.type, backend)
    reduced = cost.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    rows = reduced.amin(1)
    reduced -= rows[:, None]
    columns = reduced.amin(0)
    reduced -= columns
    extent = reduced.max().item()
    if not math.isfinite(extent):
        raise UserError("cost's differences leave the range of float64; divide cost and eps by one number")
    if eps < LEAST_EPS * extent:
        raise UserError(f"eps is {eps:g}; at least {LEAST_EPS * extent:.3g} (1e-12 of the cost's range)")
    if not SMALLEST <= eps <= LARGEST:
        raise UserError(f"eps is {eps:g}; allowed: {SMALLEST:g} to {LARGEST:g}: scale cost and eps alike")
    step = chosen.run(torch.zeros_like(a), torch.zeros_like(b), a, b, threads)
    coupling = torch.zeros_like(reduced)
    error, passes, *_ = step(reduced.neg_(), 1 / eps, coupling, tolerance, max_iterations)
    total = (cost.double() * coupling).sum().item()
    coupling = coupling if cost.dtype == torch.float64 else coupling.float()
    potentials = eps * step.f + rows, eps * step.g + columns
    if not (math.isfinite(total) and all(bool(torch.isfinite(x).all()) for x in potentials)):
        raise UserError("the iterations left the range of float64; weights less unequal or a larger eps are needed")
    return SinkhornResult(coupling, total, *potentials, error, passes, error <= tolerance)


SINKHORN = Operation(
    "sinkhorn",
    [
        Backend("native", ("cpu",), NativeStep, why_not_native),
        Backend("cuda", ("cuda",), CudaStep, partial(cuda_support.why_not, cooperative=True)),
        Backend("triton", ("cuda",), TritonStep, triton_support.why_not_cuda),
        Backend("triton", ("cpu",), TritonStep, triton_support.why_not_cpu),
        Backend("torch", ("cpu", "cuda"), TorchStep),
    ],
    sinkhorn_reference,
)
