"""Frame: the budget, bounds and quantum that every schedule is put under, and the way from a rule to a Schedule."""

import inspect
from dataclasses import dataclass

import numpy as np

from geowidth import records
from geowidth.allocate import solve
from geowidth.allocate.cost import LinearCost, linear_cost
from geowidth.allocate.problem import Problem, bound, whole_number
from geowidth.allocate.rounding import Closest, Rounding, bounds_in_steps, check_affordable, round_widths
from geowidth.allocate.schedule import Schedule
from geowidth.allocate.schedules import Shape, find_rule
from geowidth.errors import UserError

# The surrogate alone might starve a layer. Within these multiples of the uniform width no layer is starved or bloated.
SURROGATE_FLOOR, SURROGATE_CAP = "0.25x", "4x"


@dataclass(frozen=True)
class Frame:
    """What all schedules of one comparison share.

    cost, budget: a LinearCost and how much may be spent. step: every width is a multiple of it. uniform_width: the real
    common width that spends the budget. floor, cap: as the user gave them (None: the schedule's own default).
    parameters: the LinearCost in parameters, None where no model dimension is known.
    """

    problem: Problem
    cost: LinearCost
    budget: int
    step: int
    uniform_width: float
    floor: object = None
    cap: object = None
    parameters: LinearCost | None = None
    base_width: int | None = None

    def bounds(self, surrogate):
        """(lowest, highest) real widths, float64 (layers,), for a surrogate or for a shape."""
        layers, width = self.problem.layers, self.uniform_width
        floor = bound("floor", self.floor or (SURROGATE_FLOOR if surrogate else None), layers, width, self.step)
        cap = bound("cap", self.cap or (SURROGATE_CAP if surrogate else None), layers, width, np.inf)
        return floor, cap

    def answer(self, rule, options):
        """Real and integer widths of one rule: an Answer. Controls answer by way of the schedule they are built from."""
        if rule.control:
            return self._control(rule, options)
        rule.check_options(options)
        found = rule.function(self.problem, **options)
        is_shape = isinstance(found, Shape)
        floor, cap = self.bounds(not is_shape)
        low, high, room = self._feasible(floor, cap)
        settings = {**_defaults(rule), **options}
        if is_shape:
            shape = self._check_shape(rule, found.widths)
            real = solve.fit_shape(shape, self.cost.per_width, room, low, high)
            return self._rounded(rule, real, Closest(real), floor, cap, settings, dict(found.details))
        solution = solve.solve_surrogate(found.surrogate, self.cost.per_width, room, low, high)
        details = {**found.details, **_solution_details(solution)}
        answer = self._rounded(rule, solution.widths, found.surrogate, floor, cap, settings, details)
        if solution.uniform:
            details["predicted_ratio_rounded"] = answer.rounding.objective / solution.uniform
        return answer

    def _feasible(self, floor, cap):
        """Bounds as multiples of the step, and the budget for them without fixed costs; refuses an infeasible budget."""
        low, high = bounds_in_steps(floor, cap, self.step)
        check_affordable(self.cost, self.budget, low, high, cap, self.step)
        lowest = low * float(self.step)
        highest = np.where(np.isfinite(cap), high * float(self.step), np.inf)
        return lowest, highest, min(self.budget - float(self.cost.fixed.sum()), float(self.cost.per_width @ highest))

    def _check_shape(self, rule, widths):
        shape = np.asarray(widths, dtype=np.float64)
        if shape.shape != (self.problem.layers,) or not np.isfinite(shape).all() or not (shape > 0).all():
            raise UserError(
                f"schedule {rule.name!r} gives {shape.tolist()}; {self.problem.layers} finite numbers above 0 are needed"
            )
        return shape

    def _rounded(self, rule, real, objective, floor, cap, settings, details):
        rounding = round_widths(objective, self.cost, self.budget, floor, cap, self.step)
        return Answer(rule, real, rounding, floor, cap, settings, details)

    def _control(self, rule, options):
        own = {name: value for name, value in options.items() if name in rule.options}
        inner = {name: value for name, value in options.items() if name not in own and name != "of"}
        other = options.get("of", "geometry")
        other = other if hasattr(other, "function") else find_rule(other)
        if other.control:
            raise UserError(f"a control is built from a schedule, not from the control {other.name!r}")
        source = self.answer(other, inner)
        settings = {**_defaults(rule), **own, "of": other.name, **source.settings}
        real = np.asarray(rule.function(source.real, self.problem, **own), dtype=np.float64)
        details = {"source_widths": source.rounding.widths}
        if "heads" in source.details:
            details["heads"] = rule.function(np.asarray(source.details["heads"]), self.problem, **own)
        moved = np.asarray(rule.function(source.rounding.widths, self.problem, **own))
        floor, cap = source.floor, source.cap
        if self._same_widths(moved, source.rounding.widths, floor, cap):
            # The very same widths in another order cost the same to the last parameter.
            return Answer(rule, real, Rounding(moved, 0.0, 0.0, True), floor, cap, settings, details)
        low, high, room = self._feasible(floor, cap)
        real = solve.fit_shape(self._check_shape(rule, real), self.cost.per_width, room, low, high)
        return self._rounded(rule, real, Closest(real), floor, cap, settings, details)

    def _same_widths(self, moved, widths, floor, cap):
        return (
            self.cost.equal
            and moved.dtype.kind == "i"
            and (np.sort(moved) == np.sort(widths)).all()
            and (moved >= floor).all()
            and (moved <= cap).all()
        )

    def schedule(self, rule, options):
        """The Schedule of a rule under this frame."""
        answer = self.answer(rule, options)
        widths = answer.rounding.widths
        spent = self.cost.total(widths)
        details = {
            "real_widths": answer.real,
            **answer.details,
            "rounding": {"gap": answer.rounding.gap, "exact": answer.rounding.exact, "left": self.budget - spent},
        }
        if self.parameters is not None:
            details["ffn_parameters"] = self.parameters.total(widths)
        bounds = {"floor": answer.floor, "cap": [None if np.isinf(c) else c for c in answer.cap.tolist()]}
        return Schedule(
            name=rule.name,
            widths=tuple(int(w) for w in widths),
            base_width=self.base_width,
            budget={"unit": self.cost.unit, "value": self.budget, "spent": spent},
            quantum=self.step,
            settings=records.to_jsonable({**answer.settings, **bounds, "seed": self.problem.seed}),
            details=records.to_jsonable(details),
            environment=records.environment(),
        )


@dataclass(frozen=True)
class Answer:
    """Real widths, their rounding, the bounds they kept, the options used, and details for the schedule."""

    rule: object
    real: np.ndarray
    rounding: Rounding
    floor: np.ndarray
    cap: np.ndarray
    settings: dict
    details: dict


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


def make_frame(problem, budget, unit, model_dimension, projections, biases, step, floor, cap):
    """The Frame for a problem; what is None is taken from the work profile or from the base width (see `allocate`)."""
    work, layers = problem.work, problem.layers
    if model_dimension is None and work is not None:
        model_dimension = work.model_dimension
    if projections is None:
        projections = 3 if work is None else work.projections
    parameters = None
    if model_dimension is not None:
        parameters = linear_cost("parameters", layers, model_dimension, projections, biases)
    unit = unit or ("width" if parameters is None else "parameters")
    cost = linear_cost(unit, layers, model_dimension, projections, biases)
    base_width = problem.base_width
    if budget is None:
        if base_width is None and work is None:
            raise UserError("the budget is missing; give a base width (--base), a budget (--budget) or a work profile")
        widths = np.asarray(work.widths, dtype=np.int64) if base_width is None else np.full(layers, base_width)
        budget = cost.total(widths)
        base_width = int(widths[0]) if (widths == widths[0]).all() else None
    elif base_width is not None:
        raise UserError("both a budget and a base width came; give one of them")
    budget = whole_number("budget", budget, minimum=0)
    uniform_width = (budget - float(cost.fixed.sum())) / float(cost.per_width.sum())
    return Frame(problem, cost, budget, step, uniform_width, floor, cap, parameters, base_width)
