"""Schedules by name: one file each here, and others' through SCHEDULES or the entry-point group ``geowidth.schedules``.

A rule is a function `rule(problem, *, option=default, ...)` that returns a `Shape` (relative real widths over depth) or
an `Optimum` (a surrogate whose best widths are taken); a control is a function `control(widths, problem, *, ...)` that
rearranges the real widths of another schedule. An extension (geowidth.registry) calls `SCHEDULES.register(Rule(...))`.
An entry point may name a `Rule`, or a plain function, whose docstring then describes it and whose attribute
`needs_work` says whether it reads measured work:

    [project.entry-points."geowidth.schedules"]
    mine = "my_package:my_rule"
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from geowidth.allocate.curves import Curves
from geowidth.allocate.surrogate import Surrogate
from geowidth.errors import UserError, shown
from geowidth.registry import Registry

GROUP = "geowidth.schedules"
CONTROLS = ("reversed", "permuted", "sorted", "inverse")
BUILT_IN = (
    "uniform",
    "cosine",
    "linear",
    "sigmoid",
    "groups",
    "cascade",
    "fan_in",
    "openelm",
    "framed",
    "crown",
    "reverse",
    "bow_tie",
    "geometry",
    "calibrated",
    *CONTROLS,
)


@dataclass(frozen=True)
class Shape:
    """Real widths over depth up to one common factor: positive float64 (layers,).

    tied: None, or one label a layer; layers with equal labels keep one common width. details go into the schedule.
    """

    widths: np.ndarray
    tied: np.ndarray | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimum:
    """The widths that minimise a loss `Surrogate`, or `Curves`, under the budget; details go into the schedule."""

    surrogate: Surrogate | Curves
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A schedule.

    name, summary   what it is called, and what it does in one line
    function        see above
    control         whether it rearranges another schedule
    needs_work      whether it reads `problem.work`: without a work profile it is then refused, and a run measures first
    """

    name: str
    summary: str
    function: Callable
    control: bool = False
    needs_work: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Option names and defaults: the function's keyword-only arguments."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options this schedule does not have, and missing ones without a default."""
        allowed = self.options
        for name in options:
            if name not in allowed:
                raise UserError(
                    f"schedule {self.name!r} has no option {name!r}; allowed: {', '.join(allowed) or 'none'}"
                )
        for name, default in allowed.items():
            if default is inspect.Parameter.empty and name not in options:
                raise UserError(f"schedule {self.name!r} needs the option {name!r}; give {name}=VALUE")


@cache
def _plug_ins():
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def schedule_names() -> list[str]:
    """Names of all schedules: the built-in ones, those that extensions registered, then installed plug-ins."""
    return list(dict.fromkeys([*SCHEDULES, *_plug_ins()]))


def find_rule(name: str | Rule) -> Rule:
    """The Rule called `name`, or `name` itself if it is one; an unknown name is refused with the list of known ones."""
    if isinstance(name, Rule):
        return name
    if not isinstance(name, str):
        raise UserError(f"schedule is {shown(name)}; allowed: {', '.join(schedule_names())}")
    if name in SCHEDULES:
        return SCHEDULES[name]
    if name not in _plug_ins():
        raise UserError(f"schedule is {shown(name)}; allowed: {', '.join(schedule_names())}")
    try:
        found = _plug_ins()[name].load()
    except Exception as error:  # a plug-in may fail in any way; which one it was must be said
        raise UserError(f"schedule {name!r} ({_plug_ins()[name].value}) cannot be loaded: {error}") from error
    if isinstance(found, Rule):
        return found
    if not callable(found):
        raise UserError(f"schedule {name!r} ({_plug_ins()[name].value}) is neither a function nor a Rule")
    return Rule(name, (found.__doc__ or "").strip().split("\n")[0], found, needs_work=_needs_work(found))


def _needs_work(function):
    """Whether a plain function says that it reads measured work: by an attribute `needs_work`."""
    return bool(getattr(function, "needs_work", False))


SCHEDULES = Registry("schedule", Rule, (import_module(f"{__name__}.{name}").RULE for name in BUILT_IN))
