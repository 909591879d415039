"""Problem: what a schedule rule is given to decide the widths of."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from geowidth.artifacts.cost import MOST_COUNTED, MOST_LAYERS
from geowidth.artifacts.per_layer import per_layer
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.errors import UserError, seed_number, shown, whole
from geowidth.files import PathLike, file_path

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike


@dataclass(frozen=True)
class Problem:
    """The question a rule answers.

    layers: how many. base_width: the uniform width of the budget, None where only a budget was given. work: a
    WorkProfile or None. seed: of permuted controls and users' random rules.
    """

    layers: int
    base_width: int | None = None
    work: WorkProfile | None = None
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "layers", whole("layers", self.layers, 1, MOST_LAYERS))
        if self.base_width is not None:
            object.__setattr__(self, "base_width", whole("base width", self.base_width, 1, MOST_COUNTED))
        object.__setattr__(self, "seed", seed_number("seed", self.seed))

    @property
    def depth(self) -> np.ndarray:
        """Each layer's place between 0 (first) and 1 (last), float64 (layers,); a single layer is in the middle."""
        return np.linspace(0.0, 1.0, self.layers) if self.layers > 1 else np.full(1, 0.5)


def load_work(work: WorkProfile | PathLike | None) -> WorkProfile | None:
    """A work profile from a path to work.json; a profile is passed through, None too."""
    if work is None or hasattr(work, "signal"):
        return work  # type: ignore[return-value]  # what answers as a profile is taken for one
    from geowidth.artifacts.work_profile import WorkProfile

    return WorkProfile.read(file_path("work", work))


def experts_of(work: WorkProfile) -> tuple[tuple[int, ...], ...] | None:
    """(experts, those that each token visits) of every layer of a work profile, or None where all FFNs are plain.

    A profile that was measured before experts were counted is refused if it is of a mixture of experts.
    """
    pairs = getattr(work, "experts", ())
    clouds = (getattr(work, "settings", None) or {}).get("clouds")
    if not pairs and isinstance(clouds, dict) and clouds.get("family") == "mixtral":
        raise UserError(
            "the work profile is of a mixture of experts and does not say how many there are; "
            "measure again with geowidth measure"
        )
    return tuple(zip(*pairs, strict=True)) if any(tuple(pair) != (1, 1) for pair in pairs) else None


def per_expert(work: WorkProfile, experts: tuple[int, ...]) -> WorkProfile:
    """The work profile with the width of one expert in place of that of all of a layer's experts together."""
    return replace(work, widths=tuple(width // count for width, count in zip(work.widths, experts, strict=True)))


def whole_number(what: str, value: object, minimum: int = 1) -> int:
    """`value` as an int from `minimum` to 2^53, whole floats such as 1e6 included; anything else is refused."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return whole(what, value, minimum, MOST_COUNTED)


def count_layers(layers: int | None, work: WorkProfile | None) -> int:
    """The number of layers asked for and measured; refuses none, and two that differ."""
    measured = None if work is None else len(work.widths)
    asked = None if layers is None else whole_number("layers", layers)
    known = [count for count in (asked, measured) if count is not None]
    if not known:
        raise UserError("the number of layers is missing; give layers (--layers) or a work profile (--work)")
    for count in known:
        if count > MOST_LAYERS:
            raise UserError(f"layers is {count}; allowed: 1 to {MOST_LAYERS}")
    if known[0] != known[-1]:
        raise UserError(f"layers is {layers} but the work profile has {measured}; leave layers out or measure again")
    return known[-1]


def plain_number(text: str) -> float | None:
    """The float that `text` spells in plain decimal digits, as in 12, 0.5 or 1e-3; None for any other spelling."""
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    return float(text) if plain else None


def bound(what: str, value: ArrayLike | None, layers: int, base_width: float, default: float) -> np.ndarray:
    """A floor or cap as float64 (layers,): a width, one a layer, or a text like "0.25x", times `base_width`."""
    if value is None:
        return np.full(layers, float(default))
    if isinstance(value, str):
        found = plain_number(value.removesuffix("x"))
        if found is None:
            raise UserError(f"{what} is {shown(value)}; allowed: a width such as 64, or one in bases such as 0.5x")
        value = found * base_width if value.endswith("x") else found
    return per_layer(what, value, layers, strict=True)
