"""Frame: the budget, bounds and quantum that every schedule is put under, and the way from a rule to widths."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from geowidth.allocate import solve
from geowidth.allocate.curves import Curves
from geowidth.allocate.distinct import round_distinct
from geowidth.allocate.problem import Problem, bound
from geowidth.allocate.rounding import Closest, Rounding, bounds_in_steps, check_affordable, labels_of, round_widths
from geowidth.allocate.schedules import Optimum, Rule, Shape, find_rule
from geowidth.allocate.timed import fit_time, uniform_time_width
from geowidth.artifacts.cost import MOST_COUNTED, LinearCost, TableCost
from geowidth.errors import UserError, shown

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

# The surrogate alone might starve a layer. Within these multiples of the uniform width no layer is starved or bloated.
SURROGATE_FLOOR, SURROGATE_CAP = "0.25x", "4x"


@dataclass(frozen=True)
class Answer:
    """Real widths, their rounding, the bounds they kept, the options used, and details for the schedule."""

    rule: Rule
    real: np.ndarray
    rounding: Rounding
    floor: np.ndarray
    cap: np.ndarray
    settings: dict
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Frame:
    """What all schedules of one comparison share.

    cost, budget: what widths cost, and how much may be spent. step: every width is a multiple of it. floor, cap: as the
    user gave them (None: the schedule's own default). limit: the most different widths allowed, or None.
    """

    problem: Problem
    cost: LinearCost | TableCost
    budget: int | float
    step: int
    floor: ArrayLike | None = None
    cap: ArrayLike | None = None
    limit: int | None = None

    @property
    def timed(self):
        """Whether the budget is one of time."""
        return isinstance(self.cost, TableCost)

    @property
    def linear(self) -> LinearCost:
        """The cost of a budget that is not one of time."""
        assert isinstance(self.cost, LinearCost)
        return self.cost

    @property
    def uniform_width(self):
        """The (real) common width that spends the budget."""
        if self.timed:
            return self.problem.base_width or uniform_time_width(self.cost, self.problem.layers, self.budget)
        return max(0.0, (self.budget - float(self.linear.fixed.sum())) / float(self.linear.per_width.sum()))

    def bounds(self, surrogate):
        """(lowest, highest) real widths, float64 (layers,), for a surrogate or for a shape."""
        layers, width = self.problem.layers, self.uniform_width
        floor = bound("floor", SURROGATE_FLOOR if surrogate and self.floor is None else self.floor, layers, width, 1)
        cap = bound("cap", SURROGATE_CAP if surrogate and self.cap is None else self.cap, layers, width, np.inf)
        return floor, cap

    def answer(self, rule, options):
        """The Answer of one rule. Controls answer by way of the schedule they are built from."""
        if rule.control:
            return self._control(rule, options)
        rule.check_options(options)
        if rule.needs_work and self.problem.work is None:
            raise UserError(
                f"schedule {rule.name!r} needs a work profile; give --work work.json (made by geowidth measure)"
            )
        found = rule.function(self.problem, **options)
        settings = {**_defaults(rule), **options}
        if isinstance(found, Optimum) and isinstance(found.surrogate, Curves):
            return self._along(rule, found.surrogate, self.bounds(True), settings, found.details)
        if isinstance(found, Optimum) and found.surrogate.coefficient.any():  # type: ignore[union-attr]
            return self._best(rule, found, self.bounds(True), settings)
        if isinstance(found, Optimum):  # no work anywhere: any widths are optimal
            return self._shaped(
                rule, Shape(np.ones(self.problem.layers), None, found.details), self.bounds(True), settings
            )
        if not isinstance(found, Shape):
            raise UserError(f"schedule {rule.name!r} returned {type(found).__name__}; a Shape or an Optimum is needed")
        return self._shaped(rule, found, self.bounds(False), settings)

    def _best(self, rule, found, bounds, settings):
        """The optimum of a surrogate."""
        floor, cap = bounds
        surrogate = found.surrogate
        if self.timed:
            real, rounding = fit_time(None, surrogate, self.cost, self.budget, floor, cap, self.step, limit=self.limit)
            flat = float(surrogate.value(self.uniform_width).sum())
            details = {**found.details, "predicted_ratio_rounded": rounding.objective / flat}
            return Answer(rule, real, rounding, floor, cap, settings, details)
        low, high, room = self._feasible(floor, cap)
        solution = solve.solve_surrogate(surrogate, self.linear.per_width, room, low, high)
        # Without a multiplier all working layers are at their caps, and only how to share the rest is left to round.
        objective = surrogate if solution.multiplier > 0 else Closest(solution.widths)
        rounding = self._rounded(objective, floor, cap, None)
        ratio = float(surrogate.value(rounding.widths).sum()) / solution.uniform
        details = {**found.details, **_solution_details(solution), "predicted_ratio_rounded": ratio}
        return Answer(rule, solution.widths, rounding, floor, cap, settings, details)

    def _along(self, rule, curves, bounds, settings, details):
        """The optimum of Curves, which are known at whole widths alone: nothing is left to round."""
        floor, cap = bounds
        if curves.size != self.problem.layers:
            raise UserError(f"schedule {rule.name!r} has {curves.size} curves for {self.problem.layers} layers")
        if self.timed:
            _, rounding = fit_time(None, curves, self.cost, self.budget, floor, cap, self.step, limit=self.limit)
        else:
            self._feasible(floor, cap)
            rounding = self._rounded(curves, floor, cap, None)
        predicted, flat = (
            float(curves.value(w).sum()) for w in (rounding.widths, np.full(curves.size, self.uniform_width))
        )
        found = {**details, "predicted": predicted, "predicted_uniform": flat}
        return Answer(rule, rounding.widths.astype(np.float64), rounding, floor, cap, settings, found)

    def _shaped(self, rule, found, bounds, settings):
        """A shape scaled to the budget and rounded."""
        floor, cap = bounds
        shape, tied = self._check_shape(rule, found.widths), labels_of(found.tied, self.problem.layers)
        if self.timed:
            real, rounding = fit_time(shape, None, self.cost, self.budget, floor, cap, self.step, tied, self.limit)
        else:
            low, high, room = self._feasible(floor, cap)
            real = solve.fit_shape(shape, self.linear.per_width, room, low, high)
            rounding = self._rounded(Closest(real), floor, cap, tied)
        return Answer(rule, real, rounding, floor, cap, settings, dict(found.details))

    def _feasible(self, floor, cap):
        """Bounds in multiples of the step, and the budget without fixed costs; refuses an infeasible budget."""
        least = self.cost.total(self.step)
        if self.budget < least:
            raise UserError(
                f"budget {self.budget} {self.cost.unit} is below {least}, what width {self.step} in every layer takes; "
                f"feasible: {least} or more; change the budget or the quantum"
            )
        if self.budget > MOST_COUNTED:
            raise UserError(f"budget {self.budget} {self.cost.unit} is above {MOST_COUNTED}, the most that is counted")
        low, high = bounds_in_steps(floor, cap, self.step)
        check_affordable(self.linear, self.budget, low, high, cap, self.step)
        lowest = low * float(self.step)
        highest = np.where(np.isfinite(cap), high * float(self.step), np.inf)
        return (
            lowest,
            highest,
            min(self.budget - float(self.linear.fixed.sum()), float(self.linear.per_width @ highest)),
        )

    def _check_shape(self, rule, widths):
        try:
            shape = np.asarray(widths, dtype=np.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            shape = np.full(1, np.nan)
        if shape.shape != (self.problem.layers,) or not np.isfinite(shape).all() or not (shape > 0).all():
            raise UserError(
                f"schedule {rule.name!r} gives {shown(widths)}; {self.problem.layers} finite numbers above 0 are needed"
            )
        # Only ratios count. Those of numbers near the ends of float64 would overflow; those under 2^-60 mean the floor.
        return np.maximum(shape / shape.max(), 2.0**-60)

    def _rounded(self, objective, floor, cap, tied):
        cost, budget = self.linear, int(self.budget)
        if self.limit is None:
            return round_widths(objective, cost, budget, floor, cap, self.step, tied)
        return round_distinct(objective, cost, budget, floor, cap, self.step, self.limit, tied)

    def _control(self, rule, options):
        own = {name: value for name, value in options.items() if name in rule.options}
        other = find_rule(options.get("of", "geometry"))
        if other.control:
            raise UserError(f"a control is built from a schedule, not from the control {other.name!r}")
        source = self.answer(other, {k: v for k, v in options.items() if k not in own and k != "of"})
        settings = {**_defaults(rule), **own, "of": other.name, **source.settings}
        details = {"source_widths": source.rounding.widths}
        heads = source.details.get("heads")
        moved_heads = None if heads is None else _rearranged(rule, heads, self.problem, own)
        if moved_heads is not None:
            details["heads"] = moved_heads
        elif heads is not None:
            details["notes"] = [f"the control {rule.name} rearranges no heads: attention is that of the uniform model"]
        moved = _rearranged(rule, source.rounding.widths, self.problem, own)
        real = np.asarray(rule.function(source.real, self.problem, **own), dtype=np.float64)
        floor, cap = source.floor, source.cap
        if moved is not None and self.cost.equal and (moved >= floor).all() and (moved <= cap).all():
            # The very same widths in another order cost the same to the last parameter.
            return Answer(rule, real, Rounding(moved, 0.0, 0.0, True), floor, cap, settings, details)
        return self._shaped(rule, Shape(real, None, details), (floor, cap), settings)


def _rearranged(rule, values, problem, options):
    """Whole numbers as the control arranges them, or None if it does more than rearrange."""
    values = np.asarray(values)
    moved = np.asarray(rule.function(values, problem, **options))
    same = moved.dtype.kind == "i" and moved.shape == values.shape and (np.sort(moved) == np.sort(values)).all()
    return moved if same else None


def _defaults(rule):
    return {name: value for name, value in rule.options.items() if value is not inspect.Parameter.empty}


def _solution_details(solution):
    return {
        "multiplier": solution.multiplier,
        "at_floor": solution.at_floor,
        "at_cap": solution.at_cap,
        "kkt_residual": solution.kkt_residual,
        "predicted_ratio": solution.ratio,
    }
