"""Entropic Gromov-Wasserstein: minimise E(T) + eps KL(T | a b') over couplings T of weights a and b.

Fixed points are those of projected gradient descent in the KL geometry (Peyre, Cuturi, Solomon, "Gromov-Wasserstein
averaging of kernel and distance matrices", ICML 2016): T = the coupling of the form exp(4/eps (D1 T D2 + m1 m2') + f +
g') with D = HCH, m the centred row means (weighted: H = I - 1 a'). entropic_descent.py says how they are reached.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from geowidth.errors import MOST, UserError, choose, positive, whole
from geowidth.inputs import numbers_on
from geowidth.ops import cuda_support, triton_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.entropic_descent import RANK, SMALL, Problem, Run, Side, divergence, round_onto_marginals
from geowidth.ops.entropic_kernels import CudaStep, NativeStep, TorchStep
from geowidth.ops.entropic_triton import TritonStep
from geowidth.ops.ffn_library import float32_products
from geowidth.ops.gromov_inputs import cost_pair, weights
from geowidth.ops.threads import thread_count, torch_threads

STARTS = ("identity", "product")
DOUBLE_BELOW = 1e-3  # eps_rel under which float32 exponents lose too many digits
LEAST_EPS_REL = 1e-9  # and float64 ones


@dataclass(frozen=True)
class EntropicResult:
    """What `entropic_gromov_wasserstein` found.

    plan: (n, m) coupling, rounded onto the marginals, in the dtype computed in. value: E(plan) in squared units of the
    costs; `gw` = sqrt(value). kl: KL(plan | a b'); objective = value + eps * kl. eps, eps_rel: as used.
    marginal_error: sum of absolute deviations of the column sums before rounding (rows were exact). change: sum of
    absolute differences that an exact step would still make (where cheap steps followed the last exact one, estimated
    from how the exact ones shrank). iterations: mirror steps; exact_products: full products D1 T D2; inner_iterations:
    visits of the Sinkhorn kernel. converged: change and marginal error fell below the tolerance. start: the name of
    the one taken.
    """

    plan: torch.Tensor
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
    def gw(self):
        return math.sqrt(self.value)

    def to_json(self):
        """All numbers but the plan."""
        names = "value gw kl objective eps eps_rel marginal_error change iterations exact_products inner_iterations"
        return {name: getattr(self, name) for name in [*names.split(), "converged", "start"]}


def entropic_gromov_wasserstein(
    c1, c2, *, eps=None, eps_rel=0.1, p=None, q=None, start="auto", tolerance=1e-4, max_iterations=300, rank=None,
    threads=None, backend=None,
):  # fmt: skip
    """Entropic Gromov-Wasserstein of cost matrices (n, n) and (m, m): an EntropicResult.

    c1, c2: torch or numpy, symmetric, finite, of one dtype, on one device: float32 is computed in float32 (costs
    double-centred in float64 first, sums in float64; value and objective then within about 1e-5 of exact), float64 in
    float64; below eps_rel 1e-3 float32 is widened.
    eps: absolute, of E(T) + eps KL(T | p q'); if None, eps = eps_rel * sqrt(mean(D1 o D1) mean(D2 o D2)), the means
    weighted. p (n,), q (m,): positive weights summing to 1, default uniform.
    start: "identity" (n = m and p = q), "product", a coupling (n, m), or a sequence of these, of which the one of
    lowest objective is taken; "auto": the identity if it is a coupling, and the product coupling.
    tolerance: on what an exact step would still move, sum |T' - T|. rank: of the cheap products, up to a quarter of the
    points; 0 = exact products throughout, the default up to 192 points.
    Nothing is random; scaling the costs (with eps) or shifting them changes no plan. On a GPU float32 products are true
    float32 whatever torch's TF32 switch says, and the plan stays there; p, q and a coupling to start from may lie on
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
    one, two = Side(c1, a), Side(c2, b)
    spread = one.spread * two.spread
    if eps is None:
        eps = eps_rel * spread
    if eps == 0 or (spread == 0 and one.eccentricity * two.eccentricity == 0):
        return _flat(one, two, a, b, c1.dtype, eps, eps_rel)
    relative = eps / ((one.spread or 1.0) * (two.spread or 1.0))
    if relative < LEAST_EPS_REL:
        raise UserError(
            f"eps is {relative:.3g} of the costs' centred spread; at least {LEAST_EPS_REL:g} is needed "
            "(gromov_wasserstein solves the problem without entropy)"
        )
    dtype = torch.float64 if relative < DOUBLE_BELOW else c1.dtype
    problem = Problem(one, two, a, b, eps, dtype, step, threads)
    del one, two
    plan, name = _start(problem, start, c1, c2)
    if rank is None:
        rank = 0 if max(plan.shape) <= SMALL else RANK
    run = Run(problem, plan, tolerance, max_iterations, min(rank, min(plan.shape) // 4), name == "identity")
    run.descend()
    plan, value, kl = run.result()
    return EntropicResult(
        plan, value, kl, value + eps * kl, eps, problem.eps_rel, run.error, run.change, run.iterations,
        run.exact_products, run.passes, run.converged, name,
    )  # fmt: skip


def _flat(one, two, a, b, dtype, eps, eps_rel):
    """Costs that make all couplings equal: the product coupling has the least entropy."""
    if one.spread * two.spread == 0 and one.eccentricity * two.eccentricity != 0:
        raise UserError("eps_rel has no meaning here: a cost matrix of the form m_i + m_j has no spread; give eps")
    value = (one.mean - two.mean) ** 2 + 2 * (one.eccentricity + two.eccentricity) + one.spread**2 + two.spread**2
    plan = torch.outer(a, b).to(dtype)
    return EntropicResult(plan, value, 0.0, value, eps, eps_rel, 0.0, 0.0, 0, 0, 0, True, "product")


def _start(problem, start, c1, c2):
    """(plan, name) of the start of lowest objective; plans are given back in the problem's dtype."""
    a, b = problem.a, problem.b
    matching = len(a) == len(b) and bool(((a - b).abs() <= 1e-12).all())
    if isinstance(start, str) and start == "auto":
        start = STARTS if matching else "product"
    candidates = []
    for one in _each(start):
        if not isinstance(one, str):
            candidates.append(("plan", _given(problem, one)))
            continue
        if choose("start", one, ("auto", *STARTS)) == "identity" and not matching:
            raise UserError("start 'identity' needs equal numbers of points and equal weights p and q; use 'product'")
        candidates.append((one, None))
    if not candidates:
        raise UserError(f"start is empty; allowed: auto, {', '.join(STARTS)}, a coupling")
    objectives = [_objective(problem, c1, c2, name, plan) for name, plan in candidates] if len(candidates) > 1 else [0]
    name, plan = candidates[objectives.index(min(objectives))]
    if plan is None:
        plan = torch.diag(a) if name == "identity" else torch.outer(a, b)
    return plan.to(problem.dtype).contiguous(), name


def _each(start):
    """The starts in `start`: itself, or the entries of a sequence that is not a coupling's rows of numbers."""
    if isinstance(start, (list, tuple)) and (not start or any(isinstance(s, str) or _axes(s) > 1 for s in start)):
        return start
    return [start]


def _axes(value):
    if isinstance(value, (list, tuple)):
        return 1 + (_axes(value[0]) if value else 0)
    return getattr(value, "ndim", 0)


def _given(problem, plan):
    plan = numbers_on("start", plan, problem.a.device)  # rounded in place below: never the caller's own
    shape = len(problem.a), len(problem.b)
    if tuple(plan.shape) != shape:
        raise UserError(f"start has shape {tuple(plan.shape)}; a coupling of shape {shape} is needed")
    bad = torch.nonzero(~(torch.isfinite(plan) & (plan >= 0)))
    if len(bad):
        i, j = bad[0].tolist()
        raise UserError(f"start[{i}, {j}] is {plan[i, j].item():g}; a coupling has finite entries of at least 0")
    error = (plan.sum(1) - problem.a).abs().sum() + (plan.sum(0) - problem.b).abs().sum()
    if error > 1e-2:
        raise UserError(f"start's row and column sums miss the weights p and q by {error.item():.3g} in all")
    return round_onto_marginals(plan, problem.a, problem.b, lambda p: (p.sum(1), p.sum(0)))


def _objective(problem, c1, c2, name, plan):
    if name == "product":
        return problem.constant
    if name == "identity":
        a = problem.a
        difference = (c1 - c2).square_().to(problem.dtype)
        typed = a.to(problem.dtype)
        return (typed @ (difference @ typed)).item() - problem.eps * (a @ a.log()).item()
    typed = plan.to(problem.dtype)
    scratch = torch.empty_like(typed)
    quadratic = problem.step.inner(problem.exact(typed, scratch), typed)
    return problem.energy(quadratic, problem.linear(typed)) + problem.eps * divergence(problem, typed, scratch)


ENTROPIC_GROMOV_WASSERSTEIN = Operation(
    "entropic_gromov_wasserstein",
    [
        Backend("native", ("cpu",), partial(_solve, step=NativeStep), why_not_native),
        Backend("cuda", ("cuda",), partial(_solve, step=CudaStep), partial(cuda_support.why_not, cooperative=True)),
        Backend("triton", ("cuda",), partial(_solve, step=TritonStep), triton_support.why_not_cuda),
        Backend("triton", ("cpu",), partial(_solve, step=TritonStep), triton_support.why_not_cpu),
        Backend("torch", ("cpu", "cuda"), partial(_solve, step=TorchStep)),
    ],
)
