"""`allocate`: from a schedule's name to integer widths under an exact budget."""

from geowidth.allocate.frame import make_frame
from geowidth.allocate.problem import Problem, count_layers, load_work, whole_number
from geowidth.allocate.schedules import find_rule
from geowidth.errors import UserError


def allocate(
    schedule="geometry",
    *,
    layers=None,
    base_width=None,
    budget=None,
    unit=None,
    model_dimension=None,
    projections=None,
    biases=False,
    work=None,
    quantum=1,
    tensor_parallel=1,
    floor=None,
    cap=None,
    control=None,
    seed=0,
    **options,
):
    """Integer FFN widths, one a layer, never above the budget. Returns a Schedule.

    schedule: a name (`schedule_names()`), or a Rule of your own. control: a control ("reversed", "permuted", "sorted",
    "inverse") of that schedule; `allocate("reversed", of="cosine")` says the same as
    `allocate("cosine", control="reversed")`.

    The budget is `budget` in `unit` ("parameters", "flops", "width"), or that of `base_width` in every layer, or that of
    the widths at which `work` was measured. work: a WorkProfile or the path of a work.json; it also gives layers,
    model_dimension and projections. Where no model dimension is known, the unit is "width": the sum of the widths.

    Every width is a multiple of quantum * tensor_parallel. floor, cap: a width, one a layer, or "0.25x" of the base width;
    by default none for a shape, and 0.25x to 4x for a surrogate. Further options are those of the schedule
    (`find_rule(name).options`): start and end, geometry and statistic, exponent, ... UserError for anything that does not fit.
    """
    rule = schedule if hasattr(schedule, "function") else find_rule(schedule)
    quantum, degree = whole_number("quantum", quantum), whole_number("tensor parallel degree", tensor_parallel)
    seed = whole_number("seed", seed, minimum=0)
    base_width = None if base_width is None else whole_number("base width", base_width)
    if control is not None:
        options, rule = {**options, "of": rule}, find_rule(control)
        if not rule.control:
            raise UserError(f"control is {control!r}, a schedule of its own; give it as the schedule")
    work = load_work(work)
    problem = Problem(count_layers(layers, work), base_width, work, seed)
    frame = make_frame(problem, budget, unit, model_dimension, projections, biases, quantum * degree, floor, cap)
    return frame.schedule(rule, options)
