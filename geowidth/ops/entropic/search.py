"""Which descents an entropic Gromov-Wasserstein call makes, and which of their ends it keeps.

The problem is not convex, and two things go wrong with one descent: it ends above what another start reaches, or at a
saddle, where symmetry holds it though nearby couplings are better (the product coupling is one below a certain eps).
So several starts are descended from, and from the lowest end the search goes on: it is disturbed and descended from
again, at the problem's eps, and cooled down again from larger ones, until that lowers the objective no more.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from geowidth.ops.entropic import starts as entropic_starts
from geowidth.ops.entropic.descent import SMALL, Run
from geowidth.ops.entropic.starts import Disturbance, is_matching

HOTTEST = 1.0  # eps_rel from which the annealed starts are cooled: little more than the product coupling is left there
COOLING = 0.5, 0.8  # factors of eps between two levels of the annealed starts; each finds what the other misses,
REHEATED = 2.0, 4.0, 8.0  # and times the problem's eps from which the lowest end is cooled again,
BRIEF = (0.5,), (4.0,)  # or, of more than entropic_descent.SMALL points, where a level takes long, these
LEVELS = 24  # at most
COARSE = 1e-2, 50  # tolerance and steps at levels above the problem's eps
ROUNDS = 3  # of reheating
TRIALS = 10  # disturbances of lowest ends, one after another
# With "auto" the search ends with the identity where its descent converged and did well: with this many points
# or more, this eps or a larger one, and at most this share of the product coupling's E. Of 240 pairs of clouds (150
# synthetic: Gaussian, clustered, curves, 1 to 32 dimensions, all noises; 90 of SmolLM2's layers) 124 were so
# chosen; the rest of the search would have lowered 10 of these by more than 0.01 %, by 0.6 % at most.
WELL_MATCHED = {"points": 64, "eps_rel": 0.05, "of_product": 0.15}
GAIN = 3e-5  # of an objective: less is what descents to one minimum differ by


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: rounded plan, E, KL(plan | a b'), objective, and how it stopped."""

    plan: torch.Tensor
    value: float
    kl: float
    objective: float
    error: float
    change: float
    converged: bool
    start: str


class Search:
    """The descents of one call. lowest: the best end so far; iterations, exact_products, passes: of all descents."""

    def __init__(self, problem, costs, exponent, tolerance, max_iterations):
        self.problem, self.costs, self.exponent = problem, costs, exponent
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.iterations = self.exact_products = self.passes = 0
        self.lowest = None
        small = max(len(problem.a), len(problem.b)) <= SMALL
        self.cooling, self.reheated = (COOLING, REHEATED) if small else BRIEF

    @cached_property
    def disturbed(self):
        return Disturbance(self.problem)

    def solve(self, starts):
        """The best Descent from `starts`, (name, plan or None) pairs as of entropic_starts.named_starts."""
        for name, plan in starts:
            if name == "auto":
                self.automatic()
            else:
                self.start(name, plan)
        if not self.well_matched():
            reheated = any(name == "auto" for name, _ in starts)
            self.settle(self.reheated if reheated else ())
        return self.lowest

    def automatic(self):
        if is_matching(self.problem.a, self.problem.b):
            self.start("identity")
            if self.well_matched():
                return
        for name in entropic_starts.STARTS[1:]:
            self.start(name)

    def start(self, name, plan=None):
        """Descend from a named start or, named "plan", from one that was given."""
        problem = self.problem
        if name == "annealed":
            for factor in self.cooling:
                self.offer(self.cooled(entropic_starts.product(problem), name, HOTTEST * problem.factor, factor))
            return
        if name == "third_bound":
            plan = entropic_starts.third_bound(problem, *self.costs, self.exponent)
        elif plan is None:
            plan = getattr(entropic_starts, name)(problem)
        plan = plan.to(problem.dtype).contiguous()
        self.offer(self.descend(plan, name))

    def offer(self, descent):
        """Keep a descent if it is lower; True if it is."""
        kept = self.lowest
        better = kept is None or descent.objective < kept.objective - GAIN * abs(kept.objective)
        if better:
            self.lowest = descent
        return better

    def descend(self, plan, name):
        run = self._run(self.problem, plan, self.tolerance, self.max_iterations, name == "identity", last=True)
        plan, value, kl = run.ended
        objective = value + self.problem.eps * kl
        return Descent(plan, value, kl, objective, run.error, run.change, run.converged, name)

    def cooled(self, plan, name, eps, factor):
        """Descend from `plan` at eps, at smaller ones and at the problem's, disturbed before each."""
        target, (tolerance, most) = self.problem.eps, COARSE
        if eps > target:
            factor = min(factor, (target / eps) ** (1 / LEVELS))
        while eps > target * (1 + 1e-9):
            run = self._run(self.problem.at(eps), self.disturbed(plan), tolerance, min(most, self.max_iterations))
            plan, eps = run.plan, eps * factor
        return self.descend(self.disturbed(plan), name)

    def settle(self, heats):
        """Disturb the lowest end, and cool it down from `heats` times eps, until nothing lower is found."""
        for trial in range(TRIALS):
            lower = False
            for heat in (1.0, *(heats if trial < ROUNDS else ())):
                end = self.lowest
                lower |= self.offer(self.cooled(end.plan, end.start, heat * self.problem.eps, COOLING[0]))
            if not lower:
                return
        self.lowest = replace(self.lowest, converged=False)

    def well_matched(self):
        """Whether the lowest end is the identity's, so clearly that the search stops there: see WELL_MATCHED."""
        end, problem, limits = self.lowest, self.problem, WELL_MATCHED
        return (
            end.start == "identity"
            and end.converged
            and len(problem.a) >= limits["points"]
            and problem.eps_rel >= limits["eps_rel"]
            and end.value <= limits["of_product"] * problem.constant
        )

    def _run(self, problem, plan, tolerance, most, diagonal=False, last=False):
        run = Run(problem, plan, tolerance, most, diagonal)
        run.descend()
        if last:
            if max(plan.shape) < WELL_MATCHED["points"] or problem.eps_rel < WELL_MATCHED["eps_rel"]:
                run.polish()  # rounding onto the marginals would show in the objective
            run.ended = run.result()
        self.iterations += run.iterations
        self.exact_products += run.exact_products
        self.passes += run.passes
        return run
