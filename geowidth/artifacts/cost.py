"""What FFN widths cost: parameters, forward FLOPs, or milliseconds from a table measured on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth import records
from geowidth.artifacts.per_layer import count, per_layer
from geowidth.errors import UserError, choose, positive, shown, whole
from geowidth.files import PathLike

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

LINEAR_UNITS = ("width", "parameters", "flops")
UNITS = (*LINEAR_UNITS, "milliseconds")
KIND = "geowidth.cost"
SCHEMA = 1
MOST_COUNTED = 2**53  # of widths, parameters, FLOPs: beyond, float64 skips whole numbers
MOST_LAYERS = 100_000
WIDEST_MEASURED = 2**31


@dataclass(frozen=True)
class LinearCost:
    """Cost per_width_l * width_l + fixed_l of layer l; int64 arrays of shape (layers,), above 0 and 0 or more."""

    unit: str
    per_width: np.ndarray
    fixed: np.ndarray

    def __post_init__(self):
        layers = count(self.per_width)
        for name, least in (("per_width", 1), ("fixed", 0)):
            object.__setattr__(self, name, whole_per_layer(f"{name} of a cost", getattr(self, name), layers, least))

    def of(self, widths: ArrayLike) -> np.ndarray:
        """Each layer's cost, int64 (layers,) for integer widths."""
        return self.per_width * np.asarray(widths) + self.fixed

    def total(self, widths: ArrayLike, step: int = 1) -> int:
        """The summed cost at `widths` (one, or one a layer) times `step`: a Python int, however large."""
        widths = [int(w) for w in np.broadcast_to(np.asarray(widths, dtype=object), self.per_width.shape)]
        pairs = zip(self.per_width.tolist(), widths, strict=True)
        return int(step) * sum(p * w for p, w in pairs) + sum(self.fixed.tolist())

    @property
    def equal(self) -> bool:
        """Whether one more unit of width costs the same in every layer."""
        return bool((self.per_width == self.per_width[0]).all())


@dataclass(frozen=True)
class TableCost:
    """Milliseconds of one FFN forward pass by width, the same for every layer, from a table measured on a device.

    widths: int64 ascending, up to 2^31; milliseconds: float64, never falling; lists of them will do. A width between
    two measured ones costs what the next wider one costs, so that no estimate is below what was measured. facts: how it
    was measured. Made by `geowidth cost`.
    """

    widths: np.ndarray
    milliseconds: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)
    unit = "milliseconds"
    equal = True

    def __post_init__(self):
        try:
            widths, times = list(self.widths), list(self.milliseconds)
        except TypeError as error:
            raise UserError("a cost table needs a list of widths and one of milliseconds; measure again") from error
        if not widths or len(widths) != len(times):
            raise UserError(f"a cost table has {len(widths)} widths and {len(times)} times; needed: as many, 1 or more")
        widths = [whole("a width of the cost table", width, 1, WIDEST_MEASURED) for width in widths]
        times = [positive("a time of the cost table", time) for time in times]
        object.__setattr__(self, "widths", np.array(widths, dtype=np.int64))
        object.__setattr__(self, "milliseconds", np.array(times, dtype=np.float64))
        if (np.diff(self.widths) <= 0).any() or (np.diff(self.milliseconds) < 0).any():
            raise UserError("a cost table needs ascending widths with never falling times; measure again")

    def of(self, widths: ArrayLike) -> np.ndarray:
        """Milliseconds at each of `widths`; widths beyond the table are refused."""
        widths = np.asarray(widths)
        if widths.size and widths.max() > self.widths[-1]:
            raise UserError(
                f"width {widths.max():g} is beyond the cost table, which ends at {self.widths[-1]}; measure wider ones"
            )
        return self.milliseconds[np.searchsorted(self.widths, widths)]

    def total(self, widths: ArrayLike) -> float:
        """The summed milliseconds as a float."""
        return float(self.of(widths).sum())

    def to_json(self) -> dict[str, Any]:
        """The table as a dict for a cost file."""
        table = {"widths": self.widths.tolist(), "milliseconds": self.milliseconds.tolist()}
        return {"kind": KIND, "schema": SCHEMA, **table, **self.facts}

    @classmethod
    def read(cls, path: PathLike) -> TableCost:
        """Read a cost file."""
        value = records.read_json(path, KIND, SCHEMA)
        try:
            whole("model_dimension", value.get("model_dimension", 1), 1)
            choose("projections", value.get("projections", 3), (2, 3))
            return cls(value.pop("widths", None), value.pop("milliseconds", None), value)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def whole_per_layer(what: str, values: ArrayLike, layers: int, minimum: int = 1) -> np.ndarray:
    """`values`, one whole number or one a layer, as int64 of shape (layers,)."""
    array = per_layer(what, values, layers, minimum)
    if (array != np.floor(array)).any() or (array > MOST_COUNTED).any():
        raise UserError(f"{what} is {shown(values)}; allowed: whole numbers from {minimum} to {MOST_COUNTED}")
    return array.astype(np.int64)


def _flags(what, values, layers):
    """`values`, one True or False or one a layer, as bool (layers,); 0 and 1 count too."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    listed = list(listed) if isinstance(listed, (list, tuple)) else [listed] * layers
    if len(listed) != layers or not all(isinstance(v, (bool, int)) and v in (0, 1) for v in listed):
        raise UserError(f"{what} is {shown(values)}; allowed: True or False, or one of them a layer")
    return np.array(listed, dtype=bool)


def linear_cost(
    unit: str,
    layers: int,
    model_dimension: ArrayLike | None = None,
    projections: ArrayLike = 3,
    biases: ArrayLike = False,
    experts: ArrayLike = 1,
    active_experts: ArrayLike = 1,
) -> LinearCost:
    """The cost of FFN layers in one of the linear units.

    "width": the widths themselves. "parameters": weights and, with `biases`, biases: projections * d per unit of width
    (3 gated: gate, up, down; 2 plain: up, down), a bias for every hidden unit of the projections into the FFN and d for
    the one out of it. "flops": forward floating-point operations per token, 2 a weight and 1 a bias; activations are
    not counted. `model_dimension` d, `projections`, `biases` and experts may differ from layer to layer (lists).

    A layer of `experts` has as many FFNs of one width, each of which a unit of width widens: that many times the width
    and the parameters, and the FLOPs of the `active_experts` that each token visits. Routers are not counted.
    """
    choose("budget unit", unit, LINEAR_UNITS)
    layers = whole("layers", layers, 1, MOST_LAYERS)
    total = whole_per_layer("experts", experts, layers)
    active = whole_per_layer("active experts", active_experts, layers)
    if (active > total).any():
        raise UserError(f"active experts is {shown(active_experts)}; allowed: up to the experts, {shown(experts)}")
    if unit == "width":
        return LinearCost(unit, total, 0 * total)
    if model_dimension is None:
        raise UserError(f"a budget in {unit} needs the model dimension; give it (--model-dimension) or count in width")
    dimension = whole_per_layer("model dimension", model_dimension, layers)
    matrices = whole_per_layer("projections", projections, layers)
    if not np.isin(matrices, (2, 3)).all():
        raise UserError(f"projections is {shown(projections)}; allowed: 2 (up, down) or 3 (gate, up, down)")
    bias = _flags("biases", biases, layers)
    weights, hidden, out = matrices * dimension, bias * (matrices - 1), bias * dimension
    many, per_width = (total, weights + hidden) if unit == "parameters" else (active, 2 * weights + hidden)
    if (many.astype(float) * per_width > MOST_COUNTED).any():
        raise UserError(f"a unit of width costs more than {MOST_COUNTED} {unit}, the most that is counted")
    return LinearCost(unit, many * per_width, many * out)
