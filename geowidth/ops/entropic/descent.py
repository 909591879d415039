"""The descent of entropic Gromov-Wasserstein: mirror steps whose products are deferred.

A step is T' = the coupling of the form exp(4/eps (D1 T D2 + m1 m2') + f + g'): one Sinkhorn problem, solved only as
well as the steps still move. The products are most of the cost, so most are deferred: with D ~ low rank + shift and R
the coupling of the last exact product,
    D1 T D2 = low(T) + [D1 R D2 - low(R)] + what is small in T - R,
a phase of cheap steps solves the problem with the bracket held, and the next exact product corrects it.
"""

import copy
import math

import torch

from geowidth.errors import UserError
from geowidth.ops.entropic.low_rank import LowRankPlusShift, add_product
from geowidth.ops.scale import over_power_of_two

RANK = 32  # of the cheap products
SMALL = 192  # up to so many points exact products are as cheap
CHEAP_STEPS = 40  # a phase at most
PHASE_SHARE = 0.05  # a phase ends when this share of what its first step moved is left to go
RELAXATION = 1.3, 1.7  # mirror steps go this much further while the objective falls; the second where they are slow
SLOW = 0.7  # a step that moves more than this share of the one before
INNER_SHARE = 0.05  # Sinkhorn's marginal error allowed, of what the last step moved
INNER_MOST = 300
POLISH_MOST = 1000
LOOSEST = 1e-2
FINEST = {torch.float32: 5e-7, torch.float64: 1e-12}
NOISE = {torch.float32: 1e-7, torch.float64: 1e-14}  # of an objective, relative
PATIENCE = 8  # exact steps that lower neither it nor what they move and miss by
LEAST_STRIDE = 1 / 64  # of a mirror step, where whole ones raise the objective


class Side:
    """One cost matrix over 2^exponent, centred with weights w: C = d + m_i + m_j + mean, spread^2 the mean of d^2."""

    def __init__(self, c, w, exponent=0):
        d = c.to(torch.float64, copy=True)
        over_power_of_two(d, exponent)
        means = d @ w
        self.mean = (w @ means).item()
        self.m = means - self.mean
        d.sub_(self.m[:, None]).sub_(self.m + self.mean)
        self.eccentricity = (w @ self.m.square()).item()
        self.spread = math.sqrt(max(0.0, (w @ (d.square() @ w)).item()))
        # Rounding leaves a trace where the costs are flat.
        largest = math.ldexp(c.abs().max().item(), -exponent)
        if self.spread <= 1e-7 * largest * (1 if c.dtype == torch.float32 else 1e-6):
            self.spread = 0.0
        self.d = d


class EntropicProblem:
    """Both sides in the dtype of the iterations, scaled: E = constant - factor * (2 <D1 T D2, T> + 4 m1' T m2)."""

    def __init__(self, one, two, a, b, eps, dtype, step, threads):
        self.eps, self.a, self.b, self.dtype = eps, a, b, dtype
        scale1, scale2 = one.spread or 1.0, two.spread or 1.0
        self.extents = one.spread, two.spread
        self.factor = scale1 * scale2
        self.constant = (
            (one.mean - two.mean) ** 2 + 2 * (one.eccentricity + two.eccentricity) + one.spread**2 + two.spread**2
        )
        self.eps_rel = eps / self.factor
        self.independent = (a @ a.log() + b @ b.log()).item()  # sum ab' * log ab'
        self.d1, self.d2 = one.d.div_(scale1).to(dtype), two.d.div_(scale2).to(dtype)
        self.step = step((one.m / scale1).to(dtype), (two.m / scale2).to(dtype), a.to(dtype), b.to(dtype), threads)
        self.low = None

    def sides(self):
        """((D1, a), (D2, b)): the centred costs of unit spread, and their weights."""
        return (self.d1, self.a), (self.d2, self.b)

    def at(self, eps):
        """The same problem at another eps; it shares all matrices and buffers."""
        other = copy.copy(self)
        other.eps, other.eps_rel = eps, eps / self.factor
        return other

    def exact(self, coupling, out):
        """out = D1 coupling D2; the kernel's buffer serves as scratch."""
        torch.mm(self.d1, coupling, out=self.step.kernel)
        return torch.mm(self.step.kernel, self.d2, out=out)

    def make_low(self, rank):
        self.low = LowRankPlusShift(self.d1, rank), LowRankPlusShift(self.d2, rank)

    def linear(self, coupling):
        return (self.step.r.double() @ (coupling @ self.step.s).double()).item()

    def energy(self, quadratic, linear):
        return self.constant - self.factor * (2 * quadratic + 4 * linear)

    def objective(self, quadratic, linear, entropy):
        """E + eps KL, entropy = sum coupling * log coupling."""
        return self.energy(quadratic, linear) + self.eps * (entropy - self.independent)

    def of_identity(self):
        """(E, KL) of the identity, where it is a coupling."""
        weighted = (self.d1 * self.step.a[:, None]).mul_(self.step.a)
        linear = (self.step.r.double() * self.step.s.double()) @ self.a
        value = self.energy(self.step.inner(weighted, self.d2), linear.item())
        return max(0.0, value), -(self.a @ self.a.log()).item()


def round_onto_marginals(coupling, a, b, marginals):
    """coupling (n, m) becomes a coupling of a and b nearby (Altschuler, Weed, Rigollet, NeurIPS 2017, Algorithm 2).

    Rows, then columns that weigh too much are scaled down; what is missing is added as a rank-one term. In place.
    marginals(coupling) gives row and column sums in float64.
    """
    rows, _ = marginals(coupling)
    coupling.mul_((a / rows).clamp_(max=1).to(coupling.dtype)[:, None])
    _, columns = marginals(coupling)
    coupling.mul_((b / columns).clamp_(max=1).to(coupling.dtype))
    rows, columns = marginals(coupling)
    missing_rows, missing_columns = (a - rows).clamp_(min=0), (b - columns).clamp_(min=0)
    missing = missing_rows.sum().item()
    if missing > 0:
        coupling.addr_(missing_rows.to(coupling.dtype), (missing_columns / missing).to(coupling.dtype))
    return coupling


def divergence(problem, coupling, scratch):
    """KL(coupling | a b') of a coupling of a and b."""
    logs = torch.log(coupling, out=scratch).clamp_(min=-1000)  # 0 log 0 = 0
    return problem.step.inner(coupling, logs) - problem.independent


class Run:
    """One descent. Buffers: coupling, reference (its share D1 R D2 - low(R)), x and y (gradients), the kernel."""

    def __init__(self, problem, coupling, tolerance, max_iterations, diagonal=False):
        self.diagonal = diagonal
        self.problem, self.coupling, self.tolerance, self.max_iterations = problem, coupling, tolerance, max_iterations
        self.scale = 4 / problem.eps_rel
        self.iterations = self.exact_products = self.passes = 0
        self.error, self.change, self.converged = 0.0, math.inf, False
        self.moved, self.ratio, self.linear, self.entropy = 1.0, 0.0, 0.0, 0.0
        self.noise = NOISE[coupling.dtype] * (abs(problem.constant) + problem.eps)
        self.x, self.y = torch.empty_like(coupling), torch.empty_like(coupling)
        self.stride, self.before, self.missed = 1.0, math.inf, 0.0
        for potential in (problem.step.f, problem.step.g):
            potential.zero_()
        self.low = problem.low is not None
        if self.low:
            self.held = torch.zeros_like(coupling)

    def descend(self):
        """Phases until an exact step moves, or would move, no more than the tolerance."""
        if self.low:
            self.phase(self.match_diagonal(self.low_gradient(self.x)))
        lowest, least, since, last = math.inf, math.inf, 0, 1.0
        while self.iterations < self.max_iterations:
            objective = self.exact_gradient()
            if self.iterations == 0:
                self.match_diagonal(self.x)
            self.shorten(objective)
            change = self.phase(self.x)
            # What the next exact step will move, if exact steps go on shrinking as they did.
            self.change = change * min(1.0, change / last) if self.low else change
            self.converged = max(self.change, self.left(), self.error) <= self.tolerance
            residual = max(change, self.error)
            since = 0 if objective < lowest - self.noise or residual < 0.9 * least else since + 1
            if self.converged or (since >= PATIENCE and not self.low):
                break
            if since >= PATIENCE:
                self.low, since = False, 0  # cheap steps no longer help: exact ones from here on
            lowest, least, last = min(lowest, objective), min(least, residual), change

    def begin_short(self, stride):
        """Take steps of this share of a mirror step from the first on, all of them exact."""
        self.low, self.stride = False, stride
        logs = torch.log(self.coupling, out=self.y).clamp_(min=-1000)
        logs.div_(self.scale).sub_(torch.outer(self.problem.step.r, self.problem.step.s))

    def shorten(self, objective):
        """Of exact steps: halve them where they raised the objective, as those of indefinite D1 T D2 may.

        y holds the gradient of the step before: T has its form, so a part of a step is a mixture of the two.
        """
        if self.low:
            return
        # What the objective is off by where marginals are missed: potentials are as large as 4 times the costs.
        missed, self.missed = max(self.error, self.missed), self.error
        if objective > self.before + self.slack() + 4 * self.problem.factor * missed:
            self.stride = max(self.stride / 2, LEAST_STRIDE)
        if self.stride < 1:
            torch.lerp(self.y, self.x, self.stride, out=self.x)
        self.y.copy_(self.x)
        self.before = objective

    def slack(self):
        """What the objective may rise by, for rounding and for marginals that are missed."""
        return self.noise + self.problem.eps * self.error

    def match_diagonal(self, gradient):
        """From the identity, potentials that put each diagonal entry near its weight: nearly right for a small eps."""
        step = self.problem.step
        if self.diagonal:
            entries = self.scale * (gradient.diagonal() + step.r * step.s)
            step.f.copy_((step.a.log() - entries) / 2)
            step.g.copy_(step.f)
        return gradient

    def exact_gradient(self):
        """x = D1 coupling D2, and what low(coupling) misses of it; returns the objective at coupling."""
        self.problem.exact(self.coupling, self.x)
        self.exact_products += 1
        pairs = [(self.x, self.coupling)]
        if self.low:
            add_product(self.held.zero_(), *self.problem.low, self.coupling)
            torch.sub(self.x, self.held, out=self.held)
            pairs.append((self.held, self.coupling))
        quadratic, *held = self.problem.step.inners(*pairs)
        if held:
            self.held_inner = held[0]
        if self.iterations == 0:
            return math.inf
        return self.problem.objective(quadratic, self.linear, self.entropy)

    def low_gradient(self, out):
        out.copy_(self.held)
        return add_product(out, *self.problem.low, self.coupling)

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
            relax = relax and objective <= before + self.slack()
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
        tolerance = min(LOOSEST, max(FINEST[self.coupling.dtype], INNER_SHARE * self.moved))
        done = self.problem.step(gradient, self.scale, self.coupling, tolerance, INNER_MOST)
        before = self.moved
        self.error, passes, moved, self.linear, self.entropy = done
        self.moved = moved / self.stride
        self.ratio = self.moved / before if before > 0 else 0.0
        self.passes += passes
        self.iterations += 1
        return self.moved

    def polish(self):
        """A last step whose marginals are met to many digits: rounding the coupling onto them then costs nothing."""
        gradient = self.problem.exact(self.coupling, self.x)
        finest = FINEST[self.coupling.dtype]
        self.error, passes, *_ = self.problem.step(gradient, self.scale, self.coupling, finest, POLISH_MOST)
        self.exact_products += 1
        self.passes += passes

    def model_objective(self, gradient):
        quadratic = sum(self.problem.step.inners((gradient, self.coupling), (self.held, self.coupling)))
        return self.problem.objective(quadratic, self.linear, self.entropy)

    def result(self):
        """(rounded coupling, E, KL(coupling | a b')); the coupling's buffer is given away."""
        problem = self.problem
        coupling = round_onto_marginals(self.coupling, problem.a, problem.b, problem.step.marginals)
        value = problem.energy(self.final_quadratic(coupling), problem.linear(coupling))
        kl = divergence(problem, coupling, self.x)
        if not math.isfinite(value + kl):
            raise UserError(
                f"the iterations left the range of {str(coupling.dtype).removeprefix('torch.')} numbers; "
                "give costs in float64, weights that are less unequal, or a larger eps"
            )
        return coupling, max(0.0, value), kl

    def final_quadratic(self, coupling):
        """<D1 T D2, T>, by the model around the last exact product unless that is not exact enough.

        The model leaves out <D1 dT D2 - low(dT), dT>, of second order in dT, below the rounding of float32 products.
        """
        inner = self.problem.step.inner
        if not self.low or coupling.dtype == torch.float64 or not self.converged:
            self.exact_products += 1
            return inner(self.problem.exact(coupling, self.x), coupling)
        return inner(self.low_gradient(self.x), coupling) + inner(self.held, coupling) - self.held_inner
