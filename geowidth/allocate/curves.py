"""Curves: a convex, never rising value of every layer, known neuron by neuron instead of by a formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from geowidth.errors import UserError


@dataclass(frozen=True)
class Curves:
    """sum_l value_l(w_l), told by what every neuron is worth.

    gains: one float64 array a layer, finite, 0 or more and never rising: gains[l][j] is what the value of layer l falls
    by when its width grows from j to j + 1. At its full width, len(gains[l]), and beyond a layer's value is 0.

    An objective of geowidth.allocate.rounding, as Surrogate is one.
    """

    gains: Sequence[np.ndarray]
    _tables: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        gains = tuple(np.asarray(layer, dtype=np.float64) for layer in self.gains)
        for layer, values in enumerate(gains):
            if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or (np.diff(values) > 0).any():
                raise UserError(
                    f"the curve of layer {layer} is not convex: each neuron's gain must be finite, 0 or more "
                    "and at most that of the one before"
                )
        object.__setattr__(self, "gains", gains)

    @property
    def size(self) -> int:
        """How many layers there are."""
        return len(self.gains)

    def value(self, widths: np.ndarray) -> np.ndarray:
        """Each layer's value at `widths`, (..., layers) float64; linear between whole widths."""
        table = self._values()
        inside = np.minimum(widths, table.shape[1] - 2)
        below = np.floor(inside).astype(np.int64)
        part, layer = inside - below, np.arange(self.size)
        return (1.0 - part) * table[layer, below] + part * table[layer, below + 1]

    def gain(self, widths: np.ndarray, step: int) -> np.ndarray:
        """How much each layer's value falls when its width, a multiple of `step`, grows by `step`; never rising."""
        if step not in self._tables:
            # Rows of equal length, summed in one order: rounding then keeps the order of the sums, as bisection needs.
            rows = -(-self._longest() // step) + 1
            self._tables[step] = self._padded(rows * step).reshape(self.size, rows, step).sum(2)
        table = self._tables[step]
        steps = np.minimum(np.rint(np.asarray(widths) / step), table.shape[1] - 1).astype(np.int64)
        return table[np.arange(self.size), steps]

    def slack(self, step: int) -> float:
        """Gains no further apart than this are equal: none but equal ones."""
        return 0.0

    def _values(self):
        """(layers, ...) values at widths 0, 1, ... and a few beyond the widest layer; kept under 0, no step."""
        if 0 not in self._tables:
            self._tables[0] = np.cumsum(self._padded(self._longest() + 3)[:, ::-1], axis=1)[:, ::-1]
        return self._tables[0]

    def _longest(self):
        return max(map(len, self.gains))

    def _padded(self, length):
        return np.stack([np.pad(layer, (0, length - len(layer))) for layer in self.gains])
