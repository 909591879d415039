"""What a schedule may state: fields that agree with its widths, and with the model that is given them."""

import math
import numbers
from typing import TYPE_CHECKING

from geowidth.artifacts.cost import LINEAR_UNITS, MOST_COUNTED, UNITS, LinearCost, linear_cost
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, choose, shown, whole

if TYPE_CHECKING:  # the schedule imports its checks
    from geowidth.artifacts.schedule import Schedule

# Settings of a schedule that say what a unit of width costs: arguments of linear_cost.
SIZES = ("model_dimension", "projections", "biases", "experts", "active_experts")
TIME_SLACK = 1e-9  # sums of the same times in another order differ in the last digits


def check_schedule(schedule: "Schedule") -> None:
    """Refuse a Schedule whose fields are of the wrong type or contradict its widths."""
    what = f"schedule {shown(schedule.name)}"
    too_wide = next((w for w in schedule.widths if w > MOST_COUNTED), None)
    if too_wide is not None:
        raise UserError(f"{what} has a width above {MOST_COUNTED}, the most that is counted")
    if schedule.base_width is not None:
        whole(f"base_width of {what}", schedule.base_width, 1)
    quantum = whole(f"quantum of {what}", schedule.quantum, 1)
    odd = next((w for w in schedule.widths if w % quantum), None)
    if odd is not None:
        raise UserError(f"{what} has width {odd}, which is no multiple of its quantum {quantum}; allocate again")
    _check_heads(schedule, what)
    if schedule.details.get("initial_scales") is not None:
        per_layer(f"initial scale of {what}", schedule.details["initial_scales"], schedule.layers, strict=True)
    _check_totals(schedule, what)


def _check_heads(schedule, what):
    heads = schedule.heads
    if heads is None:
        return
    if not isinstance(heads, (list, tuple)) or len(heads) != schedule.layers:
        raise UserError(f"{what} has heads {shown(heads)}; needed: a list with one whole number a layer")
    for count in heads:
        whole(f"heads of a layer of {what}", count, 1)


def _check_totals(schedule, what):
    """Refuse totals that are not those of the widths, where the schedule says what a unit of width costs."""
    budget = schedule.budget
    if "unit" in budget:
        choose(f"budget unit of {what}", budget["unit"], UNITS)
    for name in ("value", "spent"):
        number = budget.get(name, 0)
        real = isinstance(number, numbers.Real) and not isinstance(number, bool)
        if not real or not 0 <= number < math.inf:
            raise UserError(f"{what} has a budget with {name} {shown(number)}; allowed: finite numbers from 0 up")
    slack = TIME_SLACK * budget["value"] if budget.get("unit") == "milliseconds" else 0
    if "spent" in budget and "value" in budget and budget["spent"] > budget["value"] + slack:
        raise UserError(f"{what} spends {budget['spent']} of a budget of {budget['value']}; allocate again")
    parameters = cost_of(schedule, "parameters")
    for name, found, cost in (
        ("spent of its budget", budget.get("spent"), cost_of(schedule, budget.get("unit"))),
        ("ffn_parameters", schedule.details.get("ffn_parameters"), parameters),
    ):
        if found is not None and cost is not None and found != (total := cost.total(schedule.widths)):
            raise UserError(f"{what} has {name} {found!r}, but its widths make {total}; allocate again")


def cost_of(schedule: "Schedule", unit: str | None) -> LinearCost | None:
    """The LinearCost of the schedule's layers, or None where it does not say what its FFNs are."""
    sizes = {name: schedule.settings[name] for name in SIZES if name in schedule.settings}
    if unit != "width" and (unit not in LINEAR_UNITS or sizes.get("model_dimension") is None):
        return None
    return linear_cost(unit, schedule.layers, **sizes)


def fits(
    schedule: "Schedule", reader: str, layers: int, dimension: int, heads: int | None, projections: int, biases: bool
) -> None:
    """Refuse a schedule that states what `reader` would have to leave out; see Schedule.widths_for."""
    what = f"schedule {shown(schedule.name)}"
    if schedule.layers != layers:
        raise UserError(f"{what} has {schedule.layers} layers, the model {layers}; allocate for {layers} layers")
    stated = schedule.heads
    if stated is not None and heads is not None and any(count != heads for count in stated):
        raise UserError(
            f"{what} has attention heads {' '.join(map(str, stated))} by layer; {reader} gives every layer {heads}: "
            f"allocate without heads (--option taper=ffn)"
        )
    if schedule.settings.get("experts") is not None:
        raise UserError(
            f"{what} is for a mixture of experts, {reader} builds plain FFNs: take the widths from the file"
        )
    counted = cost_of(schedule, schedule.budget.get("unit"))
    if counted is None or counted.unit == "width":
        return
    own = linear_cost(counted.unit, layers, dimension, projections, biases)
    if (own.per_width != counted.per_width).any() or (own.fixed != counted.fixed).any():
        own_sizes = {"model_dimension": dimension, "projections": projections, "biases": biases}
        raise UserError(
            f"{what} counts its budget for FFNs of {_words(schedule.settings)}; the model's have {_words(own_sizes)}: "
            "allocate for those"
        )


def _words(sizes):
    biases = "with biases" if sizes.get("biases") else "no biases"
    return f"model dimension {sizes['model_dimension']}, {sizes.get('projections', 3)} projections, {biases}"
