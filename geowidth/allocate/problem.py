"""Problem: what a schedule rule is given to decide the widths of."""

from dataclasses import dataclass

import numpy as np

from geowidth.allocate.surrogate import per_layer
from geowidth.errors import UserError, whole

MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Problem:
    """The question a rule answers.

    layers: how many. base_width: the uniform width of the budget, None where only a budget was given. work: a
    WorkProfile or None. seed: of permuted controls and users' random rules.
    """

    layers: int
    base_width: int | None = None
    work: object = None
    seed: int = 0

    @property
    def depth(self):
        """Each layer's place between 0 (first) and 1 (last), float64 (layers,); a single layer is in the middle."""
        return np.linspace(0.0, 1.0, self.layers) if self.layers > 1 else np.full(1, 0.5)


def load_work(work):
    """A work profile from a path to work.json; a profile is passed through, None too."""
    if work is None or hasattr(work, "signal"):
        return work
    from geowidth.measure.profile import WorkProfile

    return WorkProfile.read(work)


def whole_number(what, value, minimum=1):
    """`value` as an int of at least `minimum`, whole floats such as 1e6 included; anything else is refused."""
    return whole(what, int(value) if isinstance(value, float) and value.is_integer() else value, minimum)


def count_layers(layers, work):
    """The number of layers asked for and measured; refuses none, and two that differ."""
    measured = None if work is None else len(work.widths)
    if layers is None and measured is None:
        raise UserError("the number of layers is missing; give layers (--layers) or a work profile (--work)")
    layers = None if layers is None else whole_number("layers", layers)
    if layers is not None and layers > MOST_LAYERS:
        raise UserError(f"layers is {layers}; allowed: 1 to {MOST_LAYERS}")
    if layers is not None and measured is not None and layers != measured:
        raise UserError(f"layers is {layers} but the work profile has {measured}; leave layers out or measure again")
    return layers if measured is None else measured


def bound(what, value, layers, base_width, default):
    """A floor or cap as float64 (layers,): a width, one a layer, or a text like "0.25x", times `base_width`."""
    if value is None:
        return np.full(layers, float(default))
    if isinstance(value, str):
        try:
            number = float(value.removesuffix("x"))
        except ValueError as error:
            raise UserError(
                f"{what} is {value!r}; allowed: a width such as 64, or one in bases such as 0.5x"
            ) from error
        value = number * base_width if value.endswith("x") else number
    return per_layer(what, value, layers, strict=True)
