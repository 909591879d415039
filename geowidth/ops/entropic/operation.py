"""Entropic Gromov-Wasserstein: minimise E(T) + eps KL(T | a b') over couplings T of weights a and b.

Fixed points are those of projected gradient descent in the KL geometry (Peyre, Cuturi, Solomon, "Gromov-Wasserstein
averaging of kernel and distance matrices", ICML 2016): T = the coupling of the form exp(4/eps (D1 T D2 + m1 m2') + f +
g') with D = HCH, m the centred row means (weighted: H = I - 1 a'). descent.py says how they are reached.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from geowidth.errors import MOST, UserError, positive, whole
from geowidth.inputs import ArrayLike
from geowidth.ops import cuda_support, triton_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.costs import cost_pair, weights
from geowidth.ops.entropic.descent import RANK, SMALL, EntropicProblem, Side
from geowidth.ops.entropic.reference import entropic_gromov_reference
from geowidth.ops.entropic.search import Search
from geowidth.ops.entropic.starts import named_starts
from geowidth.ops.products import float32_products
from geowidth.ops.scale import exponent_of
from geowidth.ops.threads import thread_count, torch_threads
from geowidth.ops.transport.cuda import CudaStep
from geowidth.ops.transport.native import NativeStep
from geowidth.ops.transport.torch import TorchStep
from geowidth.ops.transport.triton import TritonStep

HARMLESS = 30  # exponents of costs whose squares are far from the ends of both float ranges
DOUBLE_BELOW = 1e-3  # eps_rel under which float32 exponents lose too many digits
DOUBLE_WEIGHTS_BELOW = 1e-20  # weights under which float32 couplings come near the end of their range
PRODUCT_ABOVE = 1e8  # eps_rel from which the best coupling is the product to eight digits
LEAST_EPS_REL = 1e-9  # and float64 ones


@dataclass(frozen=True)
class EntropicResult:
    """What `entropic_gromov_wasserstein` found.

    coupling: (n, m), rounded onto the marginals, in the dtype computed in. value: E(coupling) in squared units of the
    costs; `gw` = sqrt(value). kl: KL(coupling | a b'); objective = value + eps * kl. eps, eps_rel: as used.
    marginal_error: sum of absolute deviations of the column sums before rounding (rows were exact). change: sum of
    absolute differences that an exact step would still make (where cheap steps followed the last exact one, estimated
    from how the exact ones shrank). iterations: mirror steps; exact_products: full products D1 T D2; inner_iterations:
    visits of the Sinkhorn kernel; all three of all descents together. converged: change and marginal error fell below
    the tolerance, the last disturbance of it led to nothing lower, and, of up to 192 points, no direction that
    keeps the marginals has a second variation below -1e-3 eps (over sum X^2 / T along X; all directions of up to 256
    entries, Lanczos' iteration beyond): a minimum as far as that tells, not the global one. Where the clouds clearly
    match (see `entropic_gromov_wasserstein`) neither is looked at.
    start: the name of the start that led to the coupling.
    """

    coupling: torch.Tensor
    value: float
    kl: float
    objective: float
    eps: float
    eps_rel: float
    marginal_error: float
    change: float
    iterations: int
    exact_products: int
    inner_iterations: int
    converged: bool
    start: str

    @property
    def gw(self) -> float:
        return math.sqrt(self.value)

    def to_json(self) -> dict[str, Any]:
        """All numbers but the coupling."""
        names = "value gw kl objective eps eps_rel marginal_error change iterations exact_products inner_iterations"
        return {name: getattr(self, name) for name in [*names.split(), "converged", "start"]}


def entropic_gromov_wasserstein(
    c1: ArrayLike,
    c2: ArrayLike,
    *,
    eps: float | None = None,
    eps_rel: float = 0.1,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    start: str | ArrayLike | Sequence[str | ArrayLike] = "auto",
    tolerance: float = 1e-4,
    max_iterations: int = 300,
    rank: int | None = None,
    threads: int | None = None,
    backend: str | None = None,
) -> EntropicResult:
    """Entropic Gromov-Wasserstein of cost matrices (n, n) and (m, m): an EntropicResult.

    c1, c2: torch or numpy, symmetric, finite, of one dtype, on one device: float32 is computed in float32 (costs
    double-centred in float64 first, sums in float64; value and objective then within about 1e-5 of exact), float64 in
    float64; below eps_rel 1e-3, and with weights below 1e-20, float32 is widened.
    eps: absolute, of E(T) + eps KL(T | p q'); if None, eps = eps_rel * sqrt(mean(D1 o D1) mean(D2 o D2)), the means
    weighted. p (n,), q (m,): positive weights summing to 1, default uniform.
    start: "identity" (n = m and p = q), "product", "third_bound" (the coupling of Memoli's third lower bound),
    "annealed" (cooled from an eps at which little more than the product coupling is left), a coupling (n, m), or a
    sequence of these. Each is descended from, and the end of lowest objective is kept. That end is disturbed and
    descended from again, and, where its second variation is negative, along that direction both ways, until this finds
    nothing lower: a saddle is left, a minimum is not. A start itself is kept where it is lower than all these ends, so
    the objective is never above that of any start ("annealed" starts from the product coupling).
    "auto": all four (three where the identity is no coupling), and the lowest end is also cooled again from larger eps.
    The objective is then at most that of each of these descents, to 3e-5 of it. Where the identity did clearly well
    (search.WELL_MATCHED: at least 64 points, eps_rel at least 0.05, E at most 0.15 of the product coupling's)
    it alone is descended from, once: of 124 such pairs the others would have lowered 10, by at most 0.6 %. No start
    promises the global minimum.
    tolerance: on what an exact step would still move, sum |T' - T|. max_iterations: mirror steps of one descent. rank:
    of the cheap products, up to a quarter of the points; 0 = exact products throughout, the default up to 192 points.
    Nothing is random; scaling the costs (with eps) or shifting them changes no coupling, renaming points or swapping
    sides no objective, but for rounding and for ties. On a GPU float32 products are true
    float32 whatever torch's TF32 switch says, and the coupling stays there; p, q and one to start from may lie on
    the CPU. Raises UserError naming the argument and its first bad index.
    """
    threads = thread_count(threads)
    tolerance = positive("tolerance", tolerance)
    eps = None if eps is None else positive("eps", eps)
    eps_rel = positive("eps_rel", eps_rel)
    max_iterations = whole("max_iterations", max_iterations, 1, MOST)
    rank = None if rank is None else whole("rank", rank, 0)
    c1, c2 = cost_pair(c1, c2, threads, same_size=False)
    a, b = weights(p, len(c1), "p", c1.device), weights(q, len(c2), "q", c1.device)
    chosen = ENTROPIC_GROMOV_WASSERSTEIN.choose(c1.device.type, backend)
    exact = float32_products(c1, "ieee"), torch.autocast(c1.device.type, enabled=False)
    with torch_threads(threads), cuda_support.on_device(c1), exact[0], exact[1]:
        return chosen.run(c1, c2, a, b, eps, eps_rel, start, tolerance, max_iterations, rank, threads)


def _solve(c1, c2, a, b, eps, eps_rel, start, tolerance, max_iterations, rank, threads, step):
    exponent = exponent_of(max(c1.abs().max().item(), c2.abs().max().item()), HARMLESS)
    one, two = Side(c1, a, exponent), Side(c2, b, exponent)
    eps = _eps(one, two, eps, eps_rel, exponent)
    relative = eps / ((one.spread or 1.0) * (two.spread or 1.0))
    if eps == 0 or relative > PRODUCT_ABOVE:
        return _product(one, two, a, b, c1.dtype, eps, relative if eps else eps_rel, exponent)
    if relative < LEAST_EPS_REL:
        raise UserError(
            f"eps is {relative:.3g} of the costs' centred spread; at least {LEAST_EPS_REL:g} is needed "
            "(gromov_wasserstein solves the problem without entropy)"
        )
    single = relative >= DOUBLE_BELOW and min(a.min().item(), b.min().item()) >= DOUBLE_WEIGHTS_BELOW
    problem = EntropicProblem(one, two, a, b, eps, c1.dtype if single else torch.float64, step, threads)
    del one, two
    if rank is None:
        rank = 0 if max(len(a), len(b)) <= SMALL else RANK
    if (rank := min(rank, min(len(a), len(b)) // 4)) > 0:
        problem.make_low(rank)
    search = Search(problem, (c1, c2), exponent, tolerance, max_iterations)
    end = search.solve(named_starts(problem, start))
    value, objective, eps = _in_units(exponent, end.value, end.objective, eps)
    return EntropicResult(
        end.coupling, value, end.kl, objective, eps, problem.eps_rel, end.error, end.change, search.iterations,
        search.exact_products, search.passes, end.converged, end.start,
    )  # fmt: skip


def _eps(one, two, eps, eps_rel, exponent):
    """eps in units of 4^exponent; 0 for costs that make all couplings equal."""
    flat = one.spread * two.spread == 0
    if flat and one.eccentricity * two.eccentricity == 0:
        return 0.0
    if eps is None and flat:
        raise UserError("eps_rel has no meaning here: a cost matrix of the form m_i + m_j has no spread; give eps")
    if eps is None:
        return eps_rel * one.spread * two.spread
    try:
        return max(math.ldexp(eps, -2 * exponent), sys.float_info.min)
    except OverflowError:
        return sys.float_info.max


def _product(one, two, a, b, dtype, eps, eps_rel, exponent):
    """The product coupling: of least entropy where all are equal, and all there is to find at a very large eps."""
    value = (one.mean - two.mean) ** 2 + 2 * (one.eccentricity + two.eccentricity) + one.spread**2 + two.spread**2
    value, eps = _in_units(exponent, value, eps)
    coupling = torch.outer(a, b).to(dtype)
    return EntropicResult(coupling, value, 0.0, value, eps, eps_rel, 0.0, 0.0, 0, 0, 0, True, "product")


def _in_units(exponent, *numbers):
    """Numbers times 4^exponent, refused where float64 has none that large or that small."""
    if exponent == 0:
        return numbers
    try:
        scaled = [math.ldexp(number, 2 * exponent) for number in numbers]
    except OverflowError:
        scaled = [math.inf]
    if math.inf in scaled or any(number and not there for number, there in zip(numbers, scaled, strict=True)):
        raise UserError(
            f"costs of about 2^{exponent} have squares beyond the range of float64; divide both matrices by one number"
        )
    return scaled


ENTROPIC_GROMOV_WASSERSTEIN = Operation(
    "entropic_gromov_wasserstein",
    [
        Backend("native", ("cpu",), partial(_solve, step=NativeStep), why_not_native),
        Backend("cuda", ("cuda",), partial(_solve, step=CudaStep), partial(cuda_support.why_not, cooperative=True)),
        Backend("triton", ("cuda",), partial(_solve, step=TritonStep), triton_support.why_not_cuda),
        Backend("triton", ("cpu",), partial(_solve, step=TritonStep), triton_support.why_not_cpu),
        Backend("torch", ("cpu", "cuda"), partial(_solve, step=TorchStep)),
    ],
    entropic_gromov_reference,
)
