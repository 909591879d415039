"""Which descents an entropic Gromov-Wasserstein call makes, and which of their ends it keeps.

The problem is not convex, and two things go wrong with one descent: it ends above what another start reaches, or at a
saddle, where symmetry holds it though nearby couplings are better (the product coupling is one below a certain eps).
So several starts are descended from, and from the lowest end the search goes on: it is disturbed and descended from
again, at the problem's eps, and cooled down again from larger ones, until that lowers the objective no more. Where the
objective still curves down from there, descents go on along that direction. A start below the end it led to is itself
an end.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from geowidth.ops.entropic import starts as entropic_starts
from geowidth.ops.entropic.curvature import Curvature
from geowidth.ops.entropic.descent import FINEST, INNER_MOST, NOISE, SMALL, Run, round_onto_marginals
from geowidth.ops.entropic.starts import Disturbance, is_matching

HOTTEST = 1.0  # eps_rel from which the annealed starts are cooled: little more than the product coupling is left there
COOLING = 0.5, 0.8  # factors of eps between two levels of the annealed starts; each finds what the other misses,
REHEATED = 2.0, 4.0, 8.0  # and times the problem's eps from which the lowest end is cooled again,
BRIEF = (0.5,), (4.0,)  # or, of more than descent.SMALL points, where a level takes long, these
LEVELS = 24  # at most
COARSE = 1e-2, 50  # tolerance and steps at levels above the problem's eps
ROUNDS = 3  # of reheating
TRIALS = 10  # disturbances of lowest ends, one after another
# With "auto" the search ends with the identity where its descent converged and did well: with this many points
# or more, this eps or a larger one, and at most this share of the product coupling's E. Of 240 pairs of clouds (150
# synthetic: Gaussian, clustered, curves, 1 to 32 dimensions, all noises; 90 of SmolLM2's layers) 124 were so
# chosen; the rest of the search would have lowered 10 of these by more than 0.01 %, by 0.6 % at most.
WELL_MATCHED = {"points": 64, "eps_rel": 0.05, "of_product": 0.15}
SADDLE = -1e-3  # of eps: a least curvature below this is a saddle's
ALONG = 0.3, 0.03  # sums of sizes of the steps along a saddle's direction, the first that leads lower
SHORT = (
    1 / 8,
    1 / 64,
)  # of a mirror step: from starts below the ends that whole ones led to; of up to descent.SMALL points
GAIN = 3e-5  # of an objective: less is what descents to one minimum differ by


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: rounded coupling, E, KL(coupling | a b'), objective, and how it stopped."""

    coupling: torch.Tensor
    value: float
    kl: float
    objective: float
    error: float
    change: float
    converged: bool
    start: str


class Search:
    """The descents of one call.

    lowest: the best end so far; begun: ((objective, E, KL), name, coupling or None) of the starts; iterations,
    exact_products, passes: of all descents.
    """

    def __init__(self, problem, costs, exponent, tolerance, max_iterations):
        self.problem, self.costs, self.exponent = problem, costs, exponent
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.iterations = self.exact_products = self.passes = 0
        self.lowest = None
        self.begun = []
        small = max(len(problem.a), len(problem.b)) <= SMALL
        self.cooling, self.reheated = (COOLING, REHEATED) if small else BRIEF

    @cached_property
    def disturbed(self):
        return Disturbance(self.problem)

    def solve(self, starts):
        """The best Descent from `starts`, (name, coupling or None) pairs as of starts.named_starts."""
        for name, given in starts:
            if name == "auto":
                self.automatic()
            else:
                self.start(name, given)
        if not self.well_matched():
            reheated = any(name == "auto" for name, _ in starts)
            self.settle(self.reheated if reheated else ())
        if self.stay():
            self.settle(())
        return self.lowest

    def automatic(self):
        if is_matching(self.problem.a, self.problem.b):
            self.start("identity")
            if self.well_matched():
                return
        for name in entropic_starts.STARTS[1:]:
            self.start(name)

    def start(self, name, given=None):
        """Descend from a named start or, named "given", from one that was."""
        problem = self.problem
        if name == "annealed":
            self.begun.append(((problem.constant, problem.constant, 0.0), "product", None))
            for factor in self.cooling:
                self.offer(self.cooled(entropic_starts.product(problem), name, HOTTEST * problem.factor, factor))
        else:
            coupling = self.coupling(name, given)
            self.begun.append((self.objective_at(name, coupling), name, given))
            self.offer(self.descend(coupling, name))

    def coupling(self, name, given=None):
        """A start's coupling, in memory of its own."""
        problem = self.problem
        if name == "third_bound":
            given = entropic_starts.third_bound(problem, *self.costs, self.exponent)
        elif name != "given":
            given = getattr(entropic_starts, name)(problem)
        return given.to(problem.dtype, copy=True, memory_format=torch.contiguous_format)

    def objective_at(self, name, coupling):
        """(objective, E, KL) of a start itself."""
        problem = self.problem
        if name == "product":
            value, kl = problem.constant, 0.0
        elif name == "identity":
            value, kl = problem.of_identity()
        else:
            _, value, kl = Run(problem, coupling.clone(), self.tolerance, 0).result()
        return value + problem.eps * kl, value, kl

    def stay(self):
        """Keep the lowest start itself where it is lower than all ends; True where it is."""
        problem = self.problem
        (objective, value, kl), name, given = min(self.begun, key=lambda start: start[0])
        noise = NOISE[problem.dtype] * (abs(problem.constant) + problem.eps)
        if objective >= self.lowest.objective - noise:
            return False
        coupling, error, change = self.still_moves(self.coupling(name, given))
        converged = max(change, error) <= self.tolerance
        self.lowest = Descent(coupling, value, kl, objective, error, change, converged, name)
        for stride in SHORT if max(coupling.shape) <= SMALL else ():
            self.offer(self.descend(coupling.clone(), name, stride))
        return True

    def still_moves(self, coupling):
        """(coupling, rounded; marginal error and sum of moves of an exact step from there)."""
        problem = self.problem
        step = problem.step
        coupling = round_onto_marginals(coupling, problem.a, problem.b, step.marginals)
        step.f.zero_(), step.g.zero_()
        gradient = problem.exact(coupling, torch.empty_like(coupling))
        error, passes, change, *_ = step(
            gradient, 4 / problem.eps_rel, coupling.clone(), FINEST[coupling.dtype], INNER_MOST
        )
        self.iterations += 1
        self.exact_products += 1
        self.passes += passes
        return coupling, error, change

    def offer(self, descent):
        """Keep a descent if it is lower, by any amount where it alone converged; True if it is."""
        kept = self.lowest
        settles = kept is not None and descent.converged and not kept.converged
        gain = 0.0 if settles else GAIN
        better = kept is None or descent.objective < kept.objective - gain * abs(kept.objective)
        if better:
            self.lowest = descent
        return better

    def descend(self, coupling, name, stride=1.0):
        run = self._run(self.problem, coupling, self.tolerance, self.max_iterations, name == "identity", True, stride)
        coupling, value, kl = run.ended
        objective = value + self.problem.eps * kl
        return Descent(coupling, value, kl, objective, run.error, run.change, run.converged, name)

    def cooled(self, coupling, name, eps, factor):
        """Descend from `coupling` at eps, at smaller ones and at the problem's, disturbed before each."""
        target, (tolerance, most) = self.problem.eps, COARSE
        if eps > target:
            factor = min(factor, (target / eps) ** (1 / LEVELS))
        while eps > target * (1 + 1e-9):
            run = self._run(self.problem.at(eps), self.disturbed(coupling), tolerance, min(most, self.max_iterations))
            coupling, eps = run.coupling, eps * factor
        return self.descend(self.disturbed(coupling), name)

    def settle(self, heats):
        """Go on from the lowest end until nothing lower is found."""
        for trial in range(TRIALS):
            if not (self.shaken(heats if trial < ROUNDS else ()) or self.off_saddle()):
                return
        self.lowest = replace(self.lowest, converged=False)

    def shaken(self, heats):
        """Disturb the lowest end, and cool it down from `heats` times eps; True where that led lower."""
        lower = False
        for heat in (1.0, *heats):
            end = self.lowest
            lower |= self.offer(self.cooled(end.coupling, end.start, heat * self.problem.eps, COOLING[0]))
        return lower

    def off_saddle(self):
        """Where the lowest end is a saddle, descend along its direction; True where that led lower.

        A saddle that holds is not converged. Ends of more than descent.SMALL points are not looked at.
        """
        end = self.lowest
        if not end.converged or max(end.coupling.shape) > SMALL:
            return False
        curvature, direction = Curvature(self.problem, end.coupling).least(
            self.disturbed(torch.ones_like(end.coupling)).log()
        )
        if curvature >= SADDLE:
            return False
        for size in ALONG:
            ends = [
                self.descend((end.coupling + s * direction).to(end.coupling.dtype), end.start) for s in (size, -size)
            ]
            ends.append(self.cooled(end.coupling, end.start, self.problem.eps, COOLING[0]))
            if lower := [other for other in ends if other.objective < end.objective]:
                self.lowest = min(lower, key=lambda other: (not other.converged, other.objective))
                return True
        self.lowest = replace(end, converged=False)
        return False

    def well_matched(self):
        """Whether the lowest end is the identity's, so clearly that the search stops there: see WELL_MATCHED."""
        end, problem, limits = self.lowest, self.problem, WELL_MATCHED
        return (
            end.start == "identity"
            and end.converged
            and len(problem.a) >= limits["points"]
            and problem.eps_rel >= limits["eps_rel"]
            and end.value <= limits["of_product"] * problem.constant
            and end.objective <= problem.constant  # of the product coupling
        )

    def _run(self, problem, coupling, tolerance, most, diagonal=False, last=False, stride=1.0):
        run = Run(problem, coupling, tolerance, most, diagonal)
        if stride < 1:
            run.begin_short(stride)
        run.descend()
        if last:
            if max(coupling.shape) < WELL_MATCHED["points"] or problem.eps_rel < WELL_MATCHED["eps_rel"]:
                run.polish()  # rounding onto the marginals would show in the objective
            run.ended = run.result()
        self.iterations += run.iterations
        self.exact_products += run.exact_products
        self.passes += run.passes
        return run
