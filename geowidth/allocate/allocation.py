"""`allocate`: from a schedule's name to integer widths under an exact budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth import records
from geowidth.allocate.frame import Frame
from geowidth.allocate.initial_scale import scaled_name, with_initial_scale
from geowidth.allocate.problem import Problem, count_layers, experts_of, load_work, per_expert, whole_number
from geowidth.allocate.schedules import CONTROLS, Rule, find_rule, schedule_names
from geowidth.artifacts.cost import UNITS, TableCost, linear_cost
from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError, choose, number, shown
from geowidth.files import PathLike, file_path

if TYPE_CHECKING:
    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.inputs import ArrayLike


def allocate(
    schedule: str | Rule = "geometry",
    *,
    layers: int | None = None,
    base_width: int | None = None,
    budget: float | None = None,
    unit: str | None = None,
    model_dimension: ArrayLike | None = None,
    projections: ArrayLike | None = None,
    biases: ArrayLike = False,
    cost_table: TableCost | PathLike | None = None,
    work: WorkProfile | PathLike | None = None,
    quantum: int = 1,
    tensor_parallel: int = 1,
    max_distinct_widths: int | None = None,
    floor: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    control: str | Rule | None = None,
    seed: int = 0,
    initial_scale: str = "plain",
    **options: Any,
) -> Schedule:
    """Integer FFN widths, one a layer, never above the budget. Returns a Schedule.

    schedule: a name (`schedule_names()`), or a Rule of your own. control: a control ("reversed", "permuted", "sorted",
    "inverse") of that schedule; `allocate("reversed", of="cosine")` says the same as
    `allocate("cosine", control="reversed")`.

    The budget is `budget` in `unit` ("parameters", "flops", "milliseconds", "width"), or that of `base_width` in every
    layer, or that of the widths at which `work` was measured. work: a WorkProfile or the path of a work.json; it also
    gives layers, model_dimension and projections. Where no model dimension is known, the unit is "width": the sum of
    the widths. Milliseconds need a cost_table: a TableCost or the path of the file that `geowidth cost` writes.

    Every width is a multiple of quantum * tensor_parallel; at most max_distinct_widths differ. floor, cap: a width, one
    a layer, or a text such as "0.25x" of the uniform width; by default none for a shape, and 0.25x to 4x for a
    surrogate. initial_scale: "plain", "width" or "alone", see geowidth.allocate.initial_scale. Further options are
    those of the schedule (`find_rule(name).options`): start and end, geometry and statistic, exponent, ... Anything
    that does not fit raises UserError.
    """
    rule = find_rule(schedule)
    quantum, degree = whole_number("quantum", quantum), whole_number("tensor parallel degree", tensor_parallel)
    seed = whole_number("seed", seed, minimum=0)
    base_width = None if base_width is None else whole_number("base width", base_width)
    limit = None if max_distinct_widths is None else whole_number("number of different widths", max_distinct_widths)
    if isinstance(control, str) and control not in schedule_names():
        raise UserError(f"control is {shown(control)}; allowed: {', '.join(CONTROLS)}")
    if control is not None:
        if "of" in options:
            raise UserError("both a control of the schedule and of=NAME came; give one of them")
        options, rule = {**options, "of": rule}, find_rule(control)
        if not rule.control:
            raise UserError(f"control is {shown(control)}, a schedule of its own; give it as the schedule")
    work = load_work(work)
    experts = None if work is None else experts_of(work)
    if work is not None and experts is not None:
        work = per_expert(work, experts[0])
    problem = Problem(count_layers(layers, work), base_width, work, seed)
    if work is not None:
        model_dimension = work.model_dimension if model_dimension is None else model_dimension
        projections = work.projections if projections is None else projections
    cost_table = _table(cost_table, model_dimension, projections)
    if projections is None:
        projections = 3 if cost_table is None else cost_table.facts.get("projections", 3)
    sizes = {"model_dimension": model_dimension, "projections": projections, "biases": biases}
    if experts is not None:
        sizes |= dict(zip(("experts", "active_experts"), map(list, experts), strict=True))
        if cost_table is not None:
            raise UserError("the cost table is of one FFN, the work profile of a mixture of experts; use another unit")
    costs = _costs(problem.layers, unit, sizes, cost_table)
    amount, base_width = _budget(problem, costs[0], budget)
    frame = Frame(problem, costs[0], amount, quantum * degree, floor, cap, limit)
    answer = with_initial_scale(frame, frame.answer(rule, options), initial_scale)
    return _schedule(frame, answer, scaled_name(answer.rule.name, initial_scale), base_width, costs[1], sizes)


def _costs(layers, unit, sizes, cost_table):
    """The cost of the budget, and the cost in parameters where the model dimension is known."""
    parameters = None
    if sizes["model_dimension"] is not None:
        parameters = linear_cost("parameters", layers, **sizes)
    unit = unit or ("milliseconds" if cost_table is not None else "width" if parameters is None else "parameters")
    choose("budget unit", unit, UNITS)
    if unit != "milliseconds":
        if cost_table is not None:
            raise UserError(
                f"a cost table came with a budget in {unit}; only milliseconds use it: leave one of them out"
            )
        return linear_cost(unit, layers, **sizes), parameters
    if cost_table is None:
        raise UserError("a budget in milliseconds needs a cost table; make one with geowidth cost and give it (--cost)")
    return cost_table, parameters


def _table(cost_table, model_dimension, projections):
    """The TableCost itself or the one in a file, or None; refuses one that was measured at other FFNs."""
    if cost_table is None:
        return None
    table = cost_table if isinstance(cost_table, TableCost) else TableCost.read(file_path("cost table", cost_table))
    for name, asked in (("model dimension", model_dimension), ("projections", projections)):
        measured = table.facts.get(name.replace(" ", "_"))
        if asked is not None and measured is not None and np.any(np.asarray(asked) != measured):
            raise UserError(f"the cost table was measured at {name} {measured}, not {shown(asked)}")
    return table


def _budget(problem, cost, budget):
    """(budget, base width or None) from what the user gave."""
    base_width, work = problem.base_width, problem.work
    if budget is None:
        if base_width is None and work is None:
            raise UserError("the budget is missing; give a base width (--base), a budget (--budget) or a work profile")
        widths = np.full(problem.layers, base_width) if work is None or base_width else np.asarray(work.widths)
        return cost.total(widths), int(widths[0]) if (widths == widths[0]).all() else None
    if base_width is not None:
        raise UserError("both a budget and a base width came; give one of them")
    if cost.unit != "milliseconds":
        return whole_number("budget", budget, minimum=0), None
    return number("budget in milliseconds", budget, "a finite number above 0", lambda v: 0 < v < math.inf), None


def _schedule(frame, answer, name, base_width, parameters, sizes):
    """The Schedule of an Answer, called `name`. sizes: of the FFNs whose parameters are counted, where they are."""
    widths = answer.rounding.widths
    spent = frame.cost.total(widths)
    rounding = {"gap": answer.rounding.gap, "exact": answer.rounding.exact, "left": frame.budget - spent}
    details = {"real_widths": answer.real, **answer.details, "rounding": rounding}
    if parameters is not None:
        details["ffn_parameters"] = parameters.total(widths)
    asked = {
        **answer.settings,
        "floor": answer.floor,
        "cap": [None if np.isinf(c) else c for c in answer.cap.tolist()],
        "max_distinct_widths": frame.limit,
        "seed": frame.problem.seed,
        **({name: value for name, value in sizes.items() if parameters is not None or "experts" in name}),
    }
    if "experts" in sizes:
        words = "the model has experts: these are the widths of each of them, and the budget counts them all"
        details["notes"] = [*details.get("notes", ()), words]
    return Schedule(
        name=name,
        widths=tuple(int(w) for w in widths),
        base_width=base_width,
        budget={"unit": frame.cost.unit, "value": frame.budget, "spent": spent},
        quantum=frame.step,
        settings=records.to_jsonable(asked),
        details=records.to_jsonable(details),
        environment=records.environment(),
    )
