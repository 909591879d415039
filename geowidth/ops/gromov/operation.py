"""The Gromov-Wasserstein statistic of two clouds whose points correspond.

E(T) = sum_ijkl (c1_ik - c2_jl)^2 T_ij T_kl over couplings T with uniform marginals (Memoli, "Gromov-Wasserstein
distances and the metric approach to object matching", Found. Comput. Math. 11, 2011; his distance is sqrt(min E) / 2).
The problem is not convex, and a descent finds what lies below its start. Here point i of one cloud is the image of
point i of the other, so the descent starts at the identity, and its value is never exceeded.

With D = HCH (H centres), m the centred row means and k the grand means, over couplings
    E(T) = (k1 - k2)^2 + [2 (|m1|^2 + |m2|^2) / n - 4 m1' T m2] + [(|D1|^2 + |D2|^2) / n^2 - 2 <D1 T D2, T>]:
scale, eccentricity and shape. Both brackets are sums of squares and are computed as such.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from geowidth.errors import MOST, choose, choose_several, flag, positive, whole
from geowidth.inputs import ArrayLike
from geowidth.ops import cuda_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.costs import cost_pair
from geowidth.ops.gromov.cuda import CudaKernels
from geowidth.ops.gromov.descent import STARTS, solve
from geowidth.ops.gromov.native import NativeKernels
from geowidth.ops.gromov.reference import energy_reference
from geowidth.ops.gromov.torch import TorchKernels
from geowidth.ops.scale import common_exponent, in_units_of, rescaled
from geowidth.ops.threads import thread_count, torch_threads

SQUARED = ("value", "identity", "gap", "identity_gap", "lower", "scale", "eccentricity", "shape")


@dataclass(frozen=True)
class GromovResult:
    """What `gromov_wasserstein` found.

    value: E at the best coupling, in squared units of the costs; `gw` = sqrt(value). identity: E at the identity.
    gap: Frank-Wolfe gap of the coupling, a proven bound from dual variables: to first order no coupling is better by
    more; 0 = stationary. identity_gap: the same of the identity. lower: a lower bound of E over all couplings.
    scale, eccentricity, shape: the exact split of value. weights (k,), permutations (k, n): the coupling is
    product_weight / n^2 + sum_a weights[a] [j = permutations[a, i]] / n, nearly always one permutation; both lie on
    the device of the costs, all else is Python numbers.
    start: where the best descent started. converged: whether its gap fell below tolerance * value.
    """

    value: float
    identity: float
    gap: float
    identity_gap: float
    lower: float
    scale: float
    eccentricity: float
    shape: float
    weights: torch.Tensor
    permutations: torch.Tensor
    product_weight: float
    start: str
    iterations: int
    swaps: int
    converged: bool

    @property
    def gw(self) -> float:
        return math.sqrt(self.value)

    @property
    def moved(self) -> int:
        """How many points have another partner than their own (in the heaviest permutation)."""
        if len(self.weights) == 0:
            return self.permutations.shape[1]
        heaviest = self.permutations[int(self.weights.argmax())]
        return int((heaviest != torch.arange(len(heaviest), device=heaviest.device)).sum())

    def coupling(self) -> torch.Tensor:
        """The coupling as a dense (n, n) float64 tensor; rows and columns sum to 1/n."""
        n, device = self.permutations.shape[1], self.permutations.device
        dense = torch.full((n, n), self.product_weight / n**2, dtype=torch.float64, device=device)
        rows = torch.arange(n, device=device)
        for weight, column in zip(self.weights.tolist(), self.permutations, strict=True):
            dense[rows, column] += weight / n
        return dense

    def to_json(self) -> dict[str, Any]:
        """All numbers but the coupling."""
        names = "value gw identity gap identity_gap lower scale eccentricity shape moved start iterations swaps"
        return {name: getattr(self, name) for name in [*names.split(), "converged"]}


def gromov_wasserstein(
    c1: ArrayLike,
    c2: ArrayLike,
    *,
    tolerance: float = 1e-6,
    starts: str | Sequence[str] = "auto",
    max_iterations: int = 500,
    swaps: bool = True,
    threads: int | None = None,
    backend: str | None = None,
) -> GromovResult:
    """The Gromov-Wasserstein statistic of two (n, n) cost matrices with uniform weights: a GromovResult.

    c1, c2: torch or numpy, on the CPU or on one GPU, symmetric, finite, of one dtype (float32 or float64; narrower
    floats are widened to float32, integers to float64). Sums and products are float64. The identity is evaluated and
    certified by one product and a dual-feasible assignment; where it is not stationary, conditional-gradient steps with
    exact assignment and exact line search follow until the gap is at most tolerance * E (Vayer et al., "Optimal
    transport for structured data", ICML 2019, Algorithm 2), later ones re-solving for the best mixture of the
    permutations met, and at a stationary permutation exchanges of two partners (`swaps`), which see the second order.
    starts: "identity", "product", a sequence of them (the better result counts), or "auto": the identity, and the
    product coupling too unless the clouds clearly match. With the identity among them, its value is never exceeded.
    On a GPU products, sums and the proof that a permutation is stationary stay there; where that proof fails, and for
    exchanges that help, the CPU solves on a copy. Values agree with the CPU's to about 1e-12.
    Raises UserError naming the argument and its first bad index, and for costs so large (above about 6.7e153), or so
    small, that the result is not a float64 number.
    """
    threads = thread_count(threads)
    tolerance = positive("tolerance", tolerance)
    starts, swaps = _starts(starts), flag("swaps", swaps)
    max_iterations = whole("max_iterations", max_iterations, 1, MOST)
    c1, c2 = cost_pair(c1, c2, threads, same_size=True)
    chosen = GROMOV_WASSERSTEIN.choose(c1.device.type, backend)
    exponent = common_exponent(c1, c2)
    with torch_threads(threads):
        result = chosen.run(*rescaled(c1, c2, exponent), tolerance, starts, max_iterations, swaps, threads)
    return in_units_of(c1, c2, exponent, result, SQUARED, ("value", "identity"))


def _starts(starts):
    if isinstance(starts, str) and starts == "auto":
        return starts
    if isinstance(starts, str):
        choose("starts", starts, ("auto", *STARTS))
    return choose_several("starts", starts, STARTS)


def _run(kernels, c1, c2, tolerance, starts, max_iterations, swaps, threads):
    return GromovResult(**solve(c1, c2, tolerance, starts, max_iterations, swaps, kernels(threads)))


GROMOV_WASSERSTEIN = Operation(
    "gromov_wasserstein",
    [
        Backend("native", ("cpu",), partial(_run, NativeKernels), why_not_native),
        Backend("cuda", ("cuda",), partial(_run, CudaKernels), cuda_support.why_not),
        Backend("torch", ("cpu", "cuda"), partial(_run, TorchKernels)),
    ],
    energy_reference,
)
