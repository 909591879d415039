"""Arms: what a run compares, each one way to spend the budget, told by a short text.

    NAME                       a schedule: cosine, crown, ..., or one that an extension brings
    CONTROL-NAME               a control of it: reversed-cosine, permuted-crown, sorted-geometry
    CONTROL                    that control of schedule geometry
    ...:OPTION=VALUE,...       options after any of these: cosine:start=1.6,end=0.4

Options are those of the schedule and of the control, and of every arm: seed (of permuted orders), floor, cap
and initial_scale (geowidth.allocate.initial_scale), as in cosine:initial_scale=width.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geowidth import records
from geowidth.allocate.schedules import find_rule, schedule_names
from geowidth.errors import UserError, shown
from geowidth.signals import read_signal

OF_EVERY_ARM = ("seed", "floor", "cap", "initial_scale")
MOST_LETTERS = 200  # of a name, which is that of a folder


@dataclass(frozen=True)
class Arm:
    """One way to spend the budget.

    text       as it was given. schedule, control: names of rules, control None for the schedule itself
    options    {name: value} of them, and of OF_EVERY_ARM
    """

    text: str
    schedule: str
    control: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Arm":
        """The Arm that a text tells; UserError for unknown names and options."""
        if not isinstance(text, str):
            raise UserError(f"arm is {shown(text)}; allowed: {_allowed()}")
        name, colon, words = text.partition(":")
        schedule, control = _schedule_and_control(name, text)
        options = read_options(f"arm {text!r}", split_options(words)) if colon else {}
        arm = cls(text, schedule, control, options)
        arm._check_options()
        if len(arm.name.encode()) > MOST_LETTERS:
            raise UserError(f"arm {shown(text)} is {len(text)} letters long; allowed: {MOST_LETTERS}")
        return arm

    @property
    def name(self) -> str:
        """The text as the name of a folder can be: of what could not stand there only a dash is left."""
        return re.sub(r"[^\w.,:=+-]+", "-", self.text)

    @property
    def needs_work(self) -> bool:
        """Whether its widths come from measured work."""
        return find_rule(self.schedule).needs_work

    @property
    def what(self) -> tuple[str, str | None, str]:
        """(schedule, control, options): equal for arms that do the same."""
        return self.schedule, self.control, records.dumps(self.options, sort_keys=True)

    def settings(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with those of `shared` that the schedule has and the arm leaves open."""
        known = find_rule(self.schedule).options
        found = {} if "mixture" in self.options else {name: v for name, v in shared.items() if name in known}
        return {**found, **self.options}

    def signals(self, shared: Mapping[str, Any]) -> set[tuple[str, str]]:
        """{(statistic, geometry)} that its schedule reads from the work profile."""
        if not self.needs_work:
            return set()
        options = find_rule(self.schedule).options | self.settings(shared)
        mixture = options.get("mixture")
        if isinstance(mixture, dict):
            from geowidth.geometry import GEOMETRIES  # loads torch

            return {read_signal(name, GEOMETRIES) for name in mixture}
        return {(options["statistic"], options["geometry"])} if {"geometry", "statistic"} <= options.keys() else set()

    def _check_options(self):
        control = {} if self.control is None else find_rule(self.control).options
        own = {name: v for name, v in self.options.items() if name not in control and name not in OF_EVERY_ARM}
        find_rule(self.schedule).check_options(own)


def parse_arms(texts: str | Iterable[str]) -> tuple[Arm, ...]:
    """The different Arms of a sequence of texts."""
    arms = tuple(map(Arm.parse, (texts,) if isinstance(texts, str) else texts))
    seen: dict[object, Arm] = {}
    for arm in arms:
        for key in (arm.what, arm.name):
            if key in seen:
                first = seen[key].text
                words = "stands there twice" if first == arm.text else f"is the same as {first}"
                raise UserError(f"arm {arm.text} {words}; name each once")
            seen[key] = arm
    return arms


def read_options(where: str, words: Iterable[str]) -> dict[str, Any]:
    """{name: value} of words NAME=VALUE; values are JSON where they parse as such, else text."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"{where} has {word!r}; allowed: NAME=VALUE")
        if name in pairs:
            raise UserError(f"{where} gives {name} twice; give it once")
        try:
            pairs[name] = records.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs


def split_options(words: str) -> list[str]:
    """Words between commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _schedule_and_control(name, text):
    names = schedule_names()
    if name in names:
        return ("geometry", name) if find_rule(name).control else (name, None)
    for control in names:
        rest = name.removeprefix(f"{control}-")
        if rest != name and rest in names and find_rule(control).control and not find_rule(rest).control:
            return rest, control
    raise UserError(f"arm is {shown(text)}; allowed: {_allowed()}")


def _allowed():
    names = schedule_names()
    controls = [name for name in names if find_rule(name).control]
    schedules = ", ".join(name for name in names if name not in controls)
    return (
        f"a schedule ({schedules}) or CONTROL-SCHEDULE ({', '.join(controls)}), each with options as in "
        "cosine:start=1.6,end=0.4"
    )
