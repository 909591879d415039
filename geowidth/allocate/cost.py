"""What FFN widths cost: parameters, forward FLOPs, or milliseconds from a table measured on a device."""

from dataclasses import dataclass, field

import numpy as np

from geowidth import records
from geowidth.allocate.surrogate import per_layer
from geowidth.errors import UserError, choose

LINEAR_UNITS = ("width", "parameters", "flops")
UNITS = (*LINEAR_UNITS, "milliseconds")
KIND = "geowidth.cost"
SCHEMA = 1


@dataclass(frozen=True)
class LinearCost:
    """Cost per_width_l * width_l + fixed_l of layer l; int64 arrays of shape (layers,)."""

    unit: str
    per_width: np.ndarray
    fixed: np.ndarray

    def of(self, widths):
        """Each layer's cost, int64 (layers,) for integer widths."""
        return self.per_width * np.asarray(widths) + self.fixed

    def total(self, widths, step=1):
        """The summed cost at `widths` (one, or one a layer) times `step`: a Python int, however large."""
        widths = [int(w) for w in np.broadcast_to(np.asarray(widths, dtype=object), self.per_width.shape)]
        pairs = zip(self.per_width.tolist(), widths, strict=True)
        return int(step) * sum(p * w for p, w in pairs) + sum(self.fixed.tolist())

    @property
    def equal(self):
        """Whether one more unit of width costs the same in every layer."""
        return bool((self.per_width == self.per_width[0]).all())


@dataclass(frozen=True)
class TableCost:
    """Milliseconds of one FFN forward pass by width, the same for every layer, from a table measured on a device.

    widths: int64 ascending; milliseconds: float64, never falling. A width between two measured ones costs what the next
    wider one costs, so that no estimate is below what was measured. Made by `geowidth cost`.
    """

    widths: np.ndarray
    milliseconds: np.ndarray
    facts: dict = field(default_factory=dict)
    unit = "milliseconds"
    equal = True

    def of(self, widths):
        """Milliseconds at each of `widths`; widths beyond the table are refused."""
        widths = np.asarray(widths)
        if widths.size and widths.max() > self.widths[-1]:
            raise UserError(
                f"width {widths.max():g} is beyond the cost table, which ends at {self.widths[-1]}; measure wider ones"
            )
        return self.milliseconds[np.searchsorted(self.widths, widths)]

    def total(self, widths):
        """The summed milliseconds as a float."""
        return float(self.of(widths).sum())

    def to_json(self):
        """The table as a dict for a cost file."""
        table = {"widths": self.widths.tolist(), "milliseconds": self.milliseconds.tolist()}
        return {"kind": KIND, "schema": SCHEMA, **table, **self.facts}

    @classmethod
    def read(cls, path):
        """Read a cost file."""
        value = records.read_json(path, KIND, SCHEMA)
        try:
            widths = np.asarray(value.pop("widths"), dtype=np.int64)
            times = np.asarray(value.pop("milliseconds"), dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a cost table: {error}; make one with geowidth cost") from error
        good = widths.ndim == 1 and widths.shape == times.shape and widths.size and widths[0] > 0 and times[0] > 0
        if not good or (np.diff(widths) <= 0).any() or not (np.diff(times) >= 0).all() or not np.isfinite(times).all():
            raise UserError(f"{path} holds no ascending widths with finite, never falling times above 0; measure again")
        return cls(widths, times, value)


def whole(what, values, layers, minimum=1):
    """`values`, one whole number or one a layer, as int64 of shape (layers,)."""
    array = per_layer(what, values, layers, minimum)
    if (array != np.floor(array)).any():
        raise UserError(f"{what} is {values!r}; allowed: whole numbers, {minimum} or more")
    return array.astype(np.int64)


def linear_cost(unit, layers, model_dimension=None, projections=3, biases=False):
    """The cost of FFN layers in one of the linear units.

    "width": the widths themselves. "parameters": weights and, with `biases`, biases: projections * d per unit of width
    (3 gated: gate, up, down; 2 plain: up, down), a bias for every hidden unit of the projections into the FFN and d for
    the one out of it. "flops": forward floating-point operations per token, 2 a weight and 1 a bias; activations are
    not counted. `model_dimension` d, `projections` and `biases` may differ from layer to layer (lists).
    """
    choose("budget unit", unit, LINEAR_UNITS)
    ones = np.ones(layers, dtype=np.int64)
    if unit == "width":
        return LinearCost(unit, ones, 0 * ones)
    if model_dimension is None:
        raise UserError(f"a budget in {unit} needs the model dimension; give it (--model-dimension) or count in width")
    dimension = whole("model dimension", model_dimension, layers)
    matrices = whole("projections", projections, layers)
    if not np.isin(matrices, (2, 3)).all():
        raise UserError(f"projections is {projections!r}; allowed: 2 (up, down) or 3 (gate, up, down)")
    bias = whole("biases", biases, layers, minimum=0) > 0
    weights, hidden, out = matrices * dimension, bias * (matrices - 1), bias * dimension
    return LinearCost(unit, weights + hidden if unit == "parameters" else 2 * weights + hidden, out)
