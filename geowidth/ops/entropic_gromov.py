"""Entropic Gromov-Wasserstein: minimise E(T) + eps KL(T | a b') over couplings T of weights a and b.

Fixed points are those of projected gradient descent in the KL geometry (Peyre, Cuturi, Solomon, "Gromov-Wasserstein
averaging of kernel and distance matrices", ICML 2016): T = the coupling of the form exp(4/eps (D1 T D2 + m1 m2') + f + g)
with D = HCH, m the centred row means. Each mirror step is one Sinkhorn problem, solved only as well as the steps still
move. The products are most of the cost, so they are deferred: with D ~ low rank + shift,
    D1 T D2 = low(T) + [D1 R D2 - low(R)] + rest of second order in T - R,
one exact product at a reference coupling R serves a whole phase of cheap steps, which solve the problem with the bracket
held; the next exact product corrects it. Where phases meet, the step is exact, and only such a step can end the run.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from geowidth.errors import UserError, choose
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.entropic_kernels import NativeStep, TorchStep
from geowidth.ops.gromov_inputs import cost_pair, positive, thread_count, torch_threads, weights
from geowidth.ops.low_rank import LowRankPlusShift, add_product

STARTS = ("identity", "product")
RANK = 32  # of the cheap products
SMALL = 192  # up to so many points exact products are as cheap
CHEAP_STEPS = 40  # a phase at most
PHASE_SHARE = 0.05  # a phase ends when this share of what its first step moved is left to go
RELAXATION = 1.3, 1.7  # mirror steps go this much further while the objective falls; the second where they are slow
SLOW = 0.7  # a step that moves more than this share of the one before
INNER_SHARE = 0.05  # Sinkhorn's marginal error allowed, of what the last step moved
INNER_MOST = 300
LOOSEST = 1e-2
FINEST = {torch.float32: 5e-7, torch.float64: 1e-12}
DOUBLE_BELOW = 1e-3  # eps_rel under which float32 exponents lose too many digits
LEAST_EPS_REL = 1e-9  # and float64 ones
NOISE = {torch.float32: 1e-7, torch.float64: 1e-14}  # of an objective, relative
PATIENCE = 4  # exact steps that do not lower it further


@dataclass(frozen=True)
class EntropicResult:
    """What `entropic_gromov_wasserstein` found.

    plan: (n, m) coupling, rounded onto the marginals, in the dtype computed in. value: E(plan) in squared units of the
    costs; `gw` = sqrt(value). kl: KL(plan | a b'); objective = value + eps * kl. eps, eps_rel: as used.
    marginal_error: sum of absolute deviations of the column sums before rounding (rows were exact). change: sum of
    absolute differences that the last exact step made. iterations: mirror steps; exact_products: those with the full
    D1 T D2; inner_iterations: visits of the Sinkhorn kernel. converged: whether change fell below the tolerance.
    start: where it began.
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

    c1, c2: torch or numpy, symmetric, finite, of one dtype: float32 is computed in float32 (costs double-centred in
    float64 first, sums in float64), float64 in float64; below eps_rel 1e-3 float32 is widened.
    eps: absolute, of E(T) + eps KL(T | p q'); if None, eps = eps_rel * sqrt(mean(D1 o D1) mean(D2 o D2)), means weighted.
    p (n,), q (m,): positive weights summing to 1, default uniform.
    start: "identity" (n = m and p = q), "product", a coupling (n, m), or a sequence of these, of which the one of lowest
    objective is taken; "auto": the identity if it is one, and the product coupling.
    tolerance: on sum |T' - T| of an exact step. rank: of the cheap products; 0 = exact products throughout.
    Nothing is random; the costs may be scaled (with eps) and shifted. Raises UserError naming the argument.
    """
    threads = thread_count(threads)
    tolerance = positive(tolerance, "tolerance")
    eps = None if eps is None else positive(eps, "eps")
    eps_rel = positive(eps_rel, "eps_rel")
    for name, value, least in (("max_iterations", max_iterations, 1), ("rank", RANK if rank is None else rank, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} is {value!r}; a whole number of at least {least} is needed")
    c1, c2 = cost_pair(c1, c2, threads, same_size=False)
    a, b = weights(p, len(c1), "p"), weights(q, len(c2), "q")
    chosen = ENTROPIC_GROMOV_WASSERSTEIN.choose(c1.device.type, backend)
    with torch_threads(threads):
        return chosen.run(c1, c2, a, b, eps, eps_rel, start, tolerance, max_iterations, rank, threads)


class Side:
    """One cost matrix, centred with weights w and scaled to unit spread: C = spread * (D + m_i + m_j) + mean."""

    def __init__(self, c, w):
        d = c.to(torch.float64, copy=True)
        means = d @ w
        self.mean = (w @ means).item()
        self.m = means - self.mean
        d.sub_(self.m[:, None]).sub_(self.m + self.mean)
        self.eccentricity = (w @ self.m.square()).item()
        self.spread = math.sqrt(max(0.0, (w @ (d.square() @ w)).item()))
        # Rounding leaves a trace where the costs are flat.
        largest = c.abs().max().item()
        if self.spread <= 1e-7 * largest * (1 if c.dtype == torch.float32 else 1e-6):
            self.spread = 0.0
        self.d = d


class Problem:
    """Both sides in the dtype of the iterations, scaled: E = constant - factor * (2 <D1 T D2, T> + 4 m1' T m2)."""

    def __init__(self, one, two, a, b, eps, dtype, step, threads):
        self.eps, self.a, self.b, self.dtype = eps, a, b, dtype
        scale1, scale2 = one.spread or 1.0, two.spread or 1.0
        self.factor = scale1 * scale2
        self.constant = (
            (one.mean - two.mean) ** 2 + 2 * (one.eccentricity + two.eccentricity) + one.spread**2 + two.spread**2
        )
        self.eps_rel = eps / self.factor
        self.d1, self.d2 = one.d.div_(scale1).to(dtype), two.d.div_(scale2).to(dtype)
        self.step = step((one.m / scale1).to(dtype), (two.m / scale2).to(dtype), a.to(dtype), b.to(dtype), threads)
        self.low = None

    def exact(self, plan, out):
        """out = D1 plan D2; the kernel's buffer serves as scratch."""
        torch.mm(self.d1, plan, out=self.step.kernel)
        return torch.mm(self.step.kernel, self.d2, out=out)

    def make_low(self, rank):
        self.low = LowRankPlusShift(self.d1, rank), LowRankPlusShift(self.d2, rank)

    def linear(self, plan):
        return (self.step.r.double() @ (plan @ self.step.s).double()).item()

    def energy(self, quadratic, linear):
        return self.constant - self.factor * (2 * quadratic + 4 * linear)

    def objective(self, quadratic, linear, entropy):
        """E + eps KL, entropy = sum plan * log plan."""
        independent = (self.a @ self.a.log()).item() + (self.b @ self.b.log()).item()
        return self.energy(quadratic, linear) + self.eps * (entropy - independent)


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
    run = Run(problem, plan, tolerance, max_iterations, min(rank, min(plan.shape) // 4))
    run.descend()
    return run.result(name)


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
    if isinstance(start, (str, torch.Tensor)) or hasattr(start, "__array__"):
        start = [start]
    candidates = []
    for one in start:
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


def _given(problem, plan):
    plan = torch.as_tensor(plan).detach().to(torch.float64)
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
    a, b = problem.a, problem.b
    if name == "product":
        return problem.constant
    if name == "identity":
        difference = (c1 - c2).square_().to(problem.dtype)
        typed = a.to(problem.dtype)
        return (typed @ (difference @ typed)).item() - problem.eps * (a @ a.log()).item()
    typed = plan.to(problem.dtype)
    scratch = torch.empty_like(typed)
    quadratic = problem.step.inner(problem.exact(typed, scratch), typed)
    return problem.energy(quadratic, problem.linear(typed)) + problem.eps * divergence(problem, typed, scratch)


def round_onto_marginals(plan, a, b, marginals):
    """The nearest-by coupling of Altschuler, Weed, Rigollet (NeurIPS 2017, Algorithm 2): plan (n, m) becomes one of a, b.

    Rows, then columns that weigh too much are scaled down; what is missing is added as a rank-one term. In place.
    marginals(plan) gives row and column sums in float64.
    """
    rows, _ = marginals(plan)
    plan.mul_((a / rows).clamp_(max=1).to(plan.dtype)[:, None])
    _, columns = marginals(plan)
    plan.mul_((b / columns).clamp_(max=1).to(plan.dtype))
    rows, columns = marginals(plan)
    missing_rows, missing_columns = (a - rows).clamp_(min=0), (b - columns).clamp_(min=0)
    missing = missing_rows.sum().item()
    if missing > 0:
        plan.addr_(missing_rows.to(plan.dtype), (missing_columns / missing).to(plan.dtype))
    return plan


def divergence(problem, plan, scratch):
    """KL(plan | a b') of a coupling of a and b."""
    logs = torch.log(plan, out=scratch).clamp_(min=-1000)  # 0 log 0 = 0
    a, b = problem.a, problem.b
    return problem.step.inner(plan, logs) - (a @ a.log()).item() - (b @ b.log()).item()


class Run:
    """One descent. Buffers: plan, reference (its share D1 R D2 - low(R)), x and y (gradients), the step's kernel."""

    def __init__(self, problem, plan, tolerance, max_iterations, rank):
        self.problem, self.plan, self.tolerance, self.max_iterations = problem, plan, tolerance, max_iterations
        self.scale = 4 / problem.eps_rel
        self.iterations = self.exact_products = self.passes = 0
        self.error, self.change, self.converged = 0.0, math.inf, False
        self.moved, self.ratio, self.quadratic, self.linear, self.entropy = 1.0, 0.0, 0.0, 0.0, 0.0
        self.noise = NOISE[plan.dtype] * (abs(problem.constant) + problem.eps)
        self.x, self.y = torch.empty_like(plan), torch.empty_like(plan)
        self.low = rank > 0
        if self.low:
            problem.make_low(rank)
            self.held = torch.zeros_like(plan)

    def descend(self):
        """Phases until an exact step moves, or would move, no more than the tolerance."""
        if self.low:
            self.phase(self.low_gradient(self.x))
        lowest, least, since, last = math.inf, math.inf, 0, 1.0
        while self.iterations < self.max_iterations:
            objective = self.exact_gradient()
            change = self.phase(self.x)
            # What the next exact step will move, if exact steps go on shrinking as they did.
            self.change = change * min(1.0, change / last) if self.low else change
            self.converged = self.change <= self.tolerance and self.left() <= self.tolerance
            since = 0 if objective < lowest - self.noise or change < 0.9 * least else since + 1
            if self.converged or (since >= PATIENCE and not self.low):
                break
            if since >= PATIENCE:
                self.low, since = False, 0  # cheap steps no longer help: exact ones from here on
            lowest, least, last = min(lowest, objective), min(least, change), change

    def exact_gradient(self):
        """x = D1 plan D2, and what low(plan) misses of it; returns the objective at plan."""
        self.problem.exact(self.plan, self.x)
        self.exact_products += 1
        if self.low:
            add_product(self.held.zero_(), *self.problem.low, self.plan)
            torch.sub(self.x, self.held, out=self.held)
            self.held_inner = self.problem.step.inner(self.held, self.plan)
        if self.iterations == 0:
            return math.inf
        self.quadratic = self.problem.step.inner(self.x, self.plan)
        return self.problem.objective(self.quadratic, self.linear, self.entropy)

    def low_gradient(self, out):
        out.copy_(self.held)
        return add_product(out, *self.problem.low, self.plan)

    def phase(self, gradient):
        """A step from `gradient`, then cheap ones, over-relaxed while the model's objective falls.

        Returns what the first step moved.
        """
        first = self.step(gradient)
        if not self.low or first <= self.tolerance:
            return first
        before, relax, previous = math.inf, True, None
        for _ in range(min(CHEAP_STEPS, self.max_iterations - self.iterations)):
            current = self.low_gradient(self.y if previous is self.x else self.x)
            objective = self.model_objective(current)
            relax = relax and objective <= before + self.noise + self.problem.eps * self.error
            before = objective
            mixed = current
            if relax and previous is not None:
                mixed = torch.lerp(previous, current, RELAXATION[self.ratio > SLOW], out=previous)
            self.step(mixed)
            if self.left() <= max(PHASE_SHARE * first, self.tolerance / 4):
                break
            previous = current
        return first

    def left(self):
        """What is left to go, if steps go on shrinking as the last did."""
        ratio = min(self.ratio, 0.99)
        return self.moved * max(1.0, ratio / (1 - ratio))

    def step(self, gradient):
        tolerance = min(LOOSEST, max(FINEST[self.plan.dtype], INNER_SHARE * self.moved))
        done = self.problem.step(gradient, self.scale, self.plan, tolerance, INNER_MOST)
        before = self.moved
        self.error, passes, self.moved, self.linear, self.entropy = done
        self.ratio = self.moved / before if before > 0 else 0.0
        self.passes += passes
        self.iterations += 1
        return self.moved

    def model_objective(self, gradient):
        quadratic = self.problem.step.inner(gradient, self.plan) + self.problem.step.inner(self.held, self.plan)
        return self.problem.objective(quadratic, self.linear, self.entropy)

    def result(self, start):
        problem = self.problem
        plan = round_onto_marginals(self.plan, problem.a, problem.b, problem.step.marginals)
        quadratic, linear = self.final_quadratic(plan), problem.linear(plan)
        value = max(0.0, problem.energy(quadratic, linear))
        kl = divergence(problem, plan, self.x)
        return EntropicResult(
            plan, value, kl, value + problem.eps * kl, problem.eps, problem.eps_rel, self.error, self.change,
            self.iterations, self.exact_products, self.passes, self.converged, start,
        )  # fmt: skip

    def final_quadratic(self, plan):
        """<D1 T D2, T>, by the model around the last exact product unless that is not exact enough.

        The model leaves out <D1 dT D2 - low(dT), dT>, of second order in dT, below the rounding of float32 products.
        """
        inner = self.problem.step.inner
        if not self.low or plan.dtype == torch.float64 or not self.converged:
            self.exact_products += 1
            return inner(self.problem.exact(plan, self.x), plan)
        return inner(self.low_gradient(self.x), plan) + inner(self.held, plan) - self.held_inner


ENTROPIC_GROMOV_WASSERSTEIN = Operation(
    "entropic_gromov_wasserstein",
    [
        Backend("native", ("cpu",), partial(_solve, step=NativeStep), why_not_native),
        Backend("torch", ("cpu",), partial(_solve, step=TorchStep)),
    ],
)
