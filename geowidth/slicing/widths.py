"""How many neurons each layer keeps: rules by name, each answered by `geowidth.allocate` under the target's budget.

WIDTH_RULES is the table of the rules that slicing adds; an extension (geowidth.registry) adds one by
`WIDTH_RULES.register(WidthRule(...))`. Every schedule of geowidth.allocate is a rule too, and so is every control of a
rule, told as arms of a run are:

    RULE                     cosine, sensitivity, geometry, ...
    CONTROL-RULE             reversed-cosine, sorted-geometry, permuted-sensitivity
    ...:OPTION=VALUE,...     cosine:start=1.2,end=0.8   geometry:statistic=shift,geometry=spherical

No layer ever gets more neurons than it has.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from geowidth.allocate.allocation import allocate
from geowidth.allocate.arms import read_options, split_options
from geowidth.allocate.problem import Problem, bound, whole_number
from geowidth.allocate.schedules import CONTROLS, Rule, Shape, find_rule, schedule_names
from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError, shown
from geowidth.registry import Registry
from geowidth.slicing.combined import by_both
from geowidth.slicing.curves import by_curves
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.geometry import by_geometry
from geowidth.slicing.sensitivity import by_sensitivity
from geowidth.slicing.targets import Budget, Sizes, Target
from geowidth.slicing.thresholds import by_threshold

MEASURED = "0.25x"  # of the uniform width, the floor: what is measured on little text shall starve no layer
BOTH = ("text", "scores")
EACH = Evidence.each_draw
STEEPEST = 1.75  # times the mean width: what a taper begins with at most


@dataclass(frozen=True)
class WidthRule:
    """A rule for widths.

    name, summary   what it is called, and what it does in one line
    function        (Evidence, Problem, *, option=default, ...) -> a Shape, an Optimum or Curves of geowidth.allocate
    reads           "text" and "scores", those of the two that it needs
    floor           the least width of a layer, where the user names none: a width, or a text such as "0.25x" of the
                    uniform one
    drawn           of a rule that draws: Evidence, after it has answered -> one Evidence for every draw alone, whose
                    widths are the band
    """

    name: str
    summary: str
    function: Callable[..., Any]
    reads: tuple[str, ...] = ()
    floor: str | int = 1
    drawn: Callable[[Evidence], list[Evidence]] | None = None

    def schedule(self, evidence: Evidence) -> Rule:
        """It as a schedule of geowidth.allocate, for this evidence."""
        return Rule(self.name, self.summary, functools.partial(self.function, evidence))

    @property
    def options(self) -> dict[str, Any]:
        """Option names and defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def by_uniform_share(evidence: Evidence, problem: Problem) -> Shape:
    """The same share of every layer: one common width where the model has one."""
    widths = np.array(evidence.sizes.widths)
    return Shape(widths.astype(float), tied=widths)


WIDTH_RULES = Registry(
    "rule for widths",
    WidthRule,
    (
        WidthRule("uniform", "the same share of every layer's neurons", by_uniform_share),
        WidthRule("geometry", "by the geometric work of each layer's FFN", by_geometry, ("text",), MEASURED, EACH),
        WidthRule(
            "sensitivity", "by the loss when a layer alone keeps half its neurons", by_sensitivity, BOTH, MEASURED
        ),
        WidthRule("threshold", "the best neurons of all layers, by normalised scores", by_threshold, ("scores",)),
        WidthRule("curves", "least summed loss by curves measured layer by layer", by_curves, BOTH, MEASURED),
        WidthRule("combined", "by a sensitivity of few windows and signals together", by_both, BOTH, MEASURED, EACH),
    ),
)


@dataclass(frozen=True)
class Asked:
    """A rule as a text tells it: the rule of slicing or of allocate, a control of it or None, and options."""

    text: str
    rule: WidthRule | Rule
    control: str | None
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Asked:
        """The Asked of a text; UserError for unknown names and options."""
        if not isinstance(text, str):
            raise UserError(f"rule for widths is {shown(text)}; allowed: {_allowed()}")
        name, colon, words = text.partition(":")
        control, rule = _control_and_rule(name)
        options = read_options(f"rule {text!r}", split_options(words)) if colon else {}
        own = find_rule(control).options if control else {}
        for option in options:
            known = {**rule.options, **own}
            if option not in known:
                raise UserError(f"rule {text!r} has no option {option!r}; allowed: {', '.join(known) or 'none'}")
        return cls(text, rule, control, options)

    @property
    def reads(self) -> tuple[str, ...]:
        """What of the evidence it looks at."""
        return self.rule.reads if isinstance(self.rule, WidthRule) else ()


def width_rule_names() -> list[str]:
    """Names of all rules without their controls: those of slicing, then the schedules of geowidth.allocate."""
    schedules = [n for n in schedule_names() if not find_rule(n).control and not find_rule(n).needs_work]
    return list(dict.fromkeys([*WIDTH_RULES, *schedules]))


def slice_widths(
    rule: str,
    evidence: Evidence,
    target: Target,
    *,
    multiple: int = 1,
    tensor_parallel: int = 1,
    max_distinct_widths: int | None = None,
    floor: Any = None,
    seed: int = 0,
) -> Schedule:
    """How many neurons each layer keeps, as a Schedule: its widths, what they spend, and in details what decided.

    rule       see the module. evidence: what it looks at; an Evidence of Sizes alone will do for rules that look at
               nothing else
    target     Keep, Parameters or Latency
    multiple, tensor_parallel, max_distinct_widths
               as in geowidth.allocate: widths are multiples of multiple * tensor_parallel, at most so many differ
    floor      least width: a number, one a layer, or a text such as "0.25x" of the uniform width (default: the rule's)
    seed       of permuted controls

    The total is the largest that the rule finds at or below the target; no width is above the model's own. A target
    that takes the whole model gives its own widths, where the multiple divides them, and nothing is measured. Raises
    UserError for bad arguments before anything is measured.
    """
    asked, sizes = Asked.parse(rule), evidence.sizes
    budget = target.budget(sizes)
    step = whole_number("multiple", multiple) * whole_number("tensor parallel degree", tensor_parallel)
    whole_model = budget.amount >= budget.whole and all(width % step == 0 for width in sizes.widths)
    if whole_model and (max_distinct_widths is None or len(set(sizes.widths)) <= max_distinct_widths):
        asked = dataclasses.replace(asked, rule=OWN, control=None, options={})
    least = asked.rule.floor if isinstance(asked.rule, WidthRule) else 1
    frame: dict[str, Any] = {
        "layers": sizes.layers,
        "budget": budget.amount,
        "unit": budget.unit,
        "cost_table": budget.table,
        "model_dimension": sizes.dimension,
        "projections": sizes.projections,
        "biases": sizes.biases,
        "quantum": multiple,
        "tensor_parallel": tensor_parallel,
        "max_distinct_widths": max_distinct_widths,
        "cap": list(sizes.widths),
        "floor": _floor(least if floor is None else floor, sizes, budget, step),
        "seed": seed,
    }
    allocate(OWN.schedule(evidence), **frame)  # what no rule could meet is refused before anything is measured
    found = _answer(asked, evidence, budget, frame)
    details = {**found.details, "rule": rule, "target": target.to_json(), "own_widths": list(sizes.widths)}
    return dataclasses.replace(found, details=details)


def _answer(asked: Asked, evidence: Evidence, budget: Budget, frame: dict[str, Any]) -> Schedule:
    """The Schedule of a rule under a frame; with the band over single draws where the rule has drawn."""
    if not isinstance(asked.rule, WidthRule):
        found = allocate(asked.rule, control=asked.control, **_with_ends(asked, budget.share(evidence.sizes)), **frame)
        if found.heads is not None:
            raise UserError(
                f"rule {asked.text!r} states attention heads; slicing leaves attention alone: take taper=ffn"
            )
        return found

    def allocated(seen: Evidence) -> Schedule:
        return allocate(asked.rule.schedule(seen), control=asked.control, **asked.options, **frame)  # type: ignore[union-attr]

    found = allocated(evidence)
    if asked.rule.drawn is None:
        return found
    each = np.array([allocated(one).widths for one in asked.rule.drawn(evidence)])
    band = {"draws": len(each), "lowest": each.min(0).tolist(), "highest": each.max(0).tolist()}
    return dataclasses.replace(found, details={**found.details, "band": band})


def fixed_widths(schedule: Schedule, sizes: Sizes) -> tuple[int, ...]:
    """The widths of a Schedule that a file holds, for a model of these Sizes; UserError where it has not as many
    neurons, or other sizes than the schedule counts with."""
    if schedule.heads is not None:
        raise UserError(
            f"schedule {shown(schedule.name)} states attention heads; slicing leaves attention alone: allocate without"
        )
    given: dict[str, Any] = {"dimension": sizes.dimension, "projections": sizes.projections, "biases": sizes.biases}
    widths = schedule.widths_for("slice", layers=sizes.layers, heads=None, **given)
    for layer, (width, own) in enumerate(zip(widths, sizes.widths, strict=True)):
        if width > own:
            raise UserError(
                f"schedule {shown(schedule.name)} gives layer {layer} {width} neurons, the model has {own} there; "
                "allocate with that as a cap (--cap)"
            )
    return widths


def _floor(floor, sizes: Sizes, budget: Budget, step: int) -> list[float]:
    """The least width of every layer, never above what the layer has in multiples of `step`."""
    least = bound("floor", floor, sizes.layers, max(budget.uniform, 1.0), 1.0)
    most = np.array(sizes.widths) // step * step
    if (most < 1).any():
        layer = int(np.argmax(most < 1))
        raise UserError(
            f"layer {layer} has {sizes.widths[layer]} neurons, no multiple of {step}; take a smaller multiple"
        )
    return np.minimum(np.maximum(least, 1.0), most).tolist()


def _with_ends(asked: Asked, share: float) -> dict[str, Any]:
    """The options; tapers that name no ends begin at the model's own width, as steep as they can be without a cap.

    Their mean is then the uniform width: they end as far below it as they begin above it.
    """
    ends = {"start", "end"}
    if isinstance(asked.rule, WidthRule) or not ends <= asked.rule.options.keys() or ends & asked.options.keys():
        return asked.options
    start = min(1.0 / share, STEEPEST)
    return {**asked.options, "start": start, "end": 2.0 - start}


OWN = WidthRule("own", "the model's own widths", lambda evidence, problem: Shape(np.array(evidence.sizes.widths) * 1.0))


def _control_and_rule(name):
    """(name of a control or None, the rule) of a text without its options."""
    for control in (None, *CONTROLS):
        rest = name if control is None else name.removeprefix(f"{control}-")
        if rest != name or control is None:
            if rest in WIDTH_RULES:
                return control, WIDTH_RULES[rest]
            if rest in width_rule_names():
                return control, find_rule(rest)
    raise UserError(f"rule for widths is {shown(name)}; allowed: {_allowed()}")


def _allowed():
    return (
        f"{', '.join(width_rule_names())}, or CONTROL-RULE ({', '.join(CONTROLS)}), each with options as in "
        "cosine:start=1.2,end=0.8"
    )
