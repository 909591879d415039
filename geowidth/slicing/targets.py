"""How small a sliced model shall be: a share of its FFN neurons, a number of parameters, or a time by a cost table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from geowidth.artifacts.cost import LinearCost, TableCost, linear_cost
from geowidth.errors import UserError, number, positive, whole
from geowidth.files import PathLike, file_path


class Sized(Protocol):
    """What sizes are read from: the FFNs of a model, one a layer."""

    @property
    def model(self) -> Any: ...
    @property
    def widths(self) -> tuple[int, ...]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def projections(self) -> int: ...
    @property
    def biases(self) -> bool: ...


@dataclass(frozen=True)
class Sizes:
    """What a target needs to know of a model.

    widths       FFN width of every layer, above 0
    dimension    of the residual stream
    projections  matrices per FFN: 3 gated, 2 plain
    biases       whether they have biases
    parameters   distinct parameters of the whole model; None where only shares and times are asked for
    """

    widths: tuple[int, ...]
    dimension: int
    projections: int = 3
    biases: bool = False
    parameters: int | None = None

    def __post_init__(self):
        for layer, width in enumerate(self.widths):
            if whole(f"width of layer {layer}", width, 0) == 0:
                raise UserError(
                    f"layer {layer} has no FFN (its width is 0); a model with an FFN in every layer can be sliced"
                )

    @property
    def layers(self) -> int:
        return len(self.widths)

    @property
    def neurons(self) -> int:
        """FFN neurons of all layers."""
        return sum(self.widths)

    @cached_property
    def cost(self) -> LinearCost:
        """Parameters of the FFNs by their widths."""
        return linear_cost("parameters", self.layers, self.dimension, self.projections, self.biases)

    def outside(self) -> int:
        """Parameters outside the FFNs. UserError where the total is not known."""
        if self.parameters is None:
            raise UserError(
                "the number of parameters of the model is not known; ask for a share of its neurons (--keep)"
            )
        return self.parameters - self.cost.total(self.widths)

    def total(self, widths: tuple[int, ...]) -> int:
        """Parameters of the whole model with these FFN widths."""
        return self.outside() + self.cost.total(widths)


def sizes_of(ffns: Sized) -> Sizes:
    """The Sizes of a model by its FFNs. Shared parameters count once."""
    total = sum(p.numel() for p in ffns.model.parameters())
    return Sizes(tuple(ffns.widths), int(ffns.dimension), int(ffns.projections), bool(ffns.biases), total)


@dataclass(frozen=True)
class Budget:
    """What FFN widths may cost. amount, whole: of the target and of the model as it is, in `unit`; share: their ratio
    in neurons of equal widths. table: of milliseconds."""

    unit: str
    amount: float
    whole: float
    uniform: float
    table: TableCost | None = None

    def share(self, sizes: Sizes) -> float:
        """The uniform width of the budget as a share of the mean width of the model, at most 1."""
        return min(1.0, self.uniform * sizes.layers / sizes.neurons)


@dataclass(frozen=True)
class Keep:
    """Keep this share of all FFN neurons, above 0 and at most 1."""

    share: float

    def __post_init__(self):
        number("keep", self.share, "a share of the FFN neurons above 0 and up to 1", lambda v: 0 < v <= 1)

    def budget(self, sizes: Sizes) -> Budget:
        """The Budget in units of width: the share as it is written, rounded down to whole neurons."""
        amount = math.floor(Fraction(str(float(self.share))) * sizes.neurons)
        if amount < sizes.layers:
            raise UserError(
                f"keep is {self.share:g}, {amount} of {sizes.neurons} neurons; {sizes.layers} layers need one each: "
                "keep more"
            )
        return Budget("width", amount, sizes.neurons, amount / sizes.layers)

    def to_json(self) -> dict[str, Any]:
        return {"keep": self.share}


@dataclass(frozen=True)
class Parameters:
    """At most `total` distinct parameters in the whole model, embeddings and all. added: those of them that slicing
    will add (biases that make up for what goes)."""

    total: int
    added: int = 0

    def __post_init__(self):
        whole("parameters", self.total, 1)
        whole("parameters that slicing adds", self.added, 0)

    def budget(self, sizes: Sizes) -> Budget:
        outside = sizes.outside()
        if self.total > sizes.total(sizes.widths):
            raise UserError(
                f"parameters is {self.total}; the model has {sizes.total(sizes.widths)}, and slicing adds none: "
                "ask for fewer"
            )
        amount, least = self.total - outside - self.added, sizes.cost.total(1)
        if amount < least:
            raise UserError(
                f"parameters is {self.total}; outside its FFNs the model has {outside}, and one neuron a layer takes "
                f"{least}: ask for {outside + self.added + least} or more"
            )
        cost = sizes.cost
        uniform = (amount - int(cost.fixed.sum())) / int(cost.per_width.sum())
        return Budget("parameters", amount, cost.total(sizes.widths), uniform)

    def to_json(self) -> dict[str, Any]:
        return {"parameters": self.total}


@dataclass(frozen=True)
class Latency:
    """At most so many milliseconds in the FFNs together, by a cost table that `geowidth cost` measured.

    table: a TableCost or its file. Its times are of one FFN on its number of tokens; attention and embeddings are not
    in them. It must reach as far as the model's widest FFN.
    """

    milliseconds: float
    table: TableCost | PathLike

    def __post_init__(self):
        positive("latency in milliseconds", self.milliseconds)
        if not isinstance(self.table, TableCost):
            object.__setattr__(self, "table", TableCost.read(file_path("cost table", self.table)))

    def budget(self, sizes: Sizes) -> Budget:
        table = self.table
        assert isinstance(table, TableCost)
        for name, own in (("model_dimension", sizes.dimension), ("projections", sizes.projections)):
            measured = table.facts.get(name, own)
            if measured != own:
                raise UserError(
                    f"the cost table was measured at {name.replace('_', ' ')} {measured}, the model has {own}"
                )
        if table.widths[-1] < max(sizes.widths):
            raise UserError(
                f"the cost table ends at width {table.widths[-1]}; the model's FFNs are up to {max(sizes.widths)} "
                "wide: measure that far (geowidth cost)"
            )
        every, least = table.total(np.array(sizes.widths)), float(table.milliseconds[0]) * sizes.layers
        if not least <= self.milliseconds <= every:
            raise UserError(
                f"latency is {self.milliseconds:g} ms; by the cost table the FFNs of the model take {every:g} ms, at "
                f"their narrowest {least:g} ms: ask for a time between"
            )
        fits = np.flatnonzero(table.milliseconds * sizes.layers <= self.milliseconds * (1 + 1e-9))
        return Budget("milliseconds", self.milliseconds, every, float(table.widths[fits[-1]]), table)

    def to_json(self) -> dict[str, Any]:
        return {"milliseconds": self.milliseconds}


Target = Keep | Parameters | Latency
