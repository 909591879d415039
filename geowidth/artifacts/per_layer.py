"""One number a layer: what every list over depth must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth.errors import UserError, shown

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

_MOST_FLOAT = float(np.finfo(np.float64).max)


def count(values: Any) -> int:
    """How many values there are: the length of a list or array, 1 for a single one."""
    try:
        return len(values)
    except TypeError:
        return 1


def per_layer(
    what: str, values: ArrayLike, layers: int, minimum: float = 0.0, strict: bool = False, most: float = _MOST_FLOAT
) -> np.ndarray:
    """`values`, one number or one a layer, as float64 of shape (layers,); bad numbers are refused by their layer.

    Numbers above `most` are refused, those below `minimum` too, with `strict` also `minimum` itself.
    """
    array = _floats(what, values)
    if array.ndim == 0:
        array = np.full(layers, array)
    if array.ndim != 1 or len(array) != layers:
        raise UserError(f"{what} has {array.size} numbers for {layers} layers; give one number or one a layer")
    wrong = ~((array > minimum if strict else array >= minimum) & (array <= most))
    if wrong.any():
        layer = int(np.flatnonzero(wrong)[0])
        bound = f"above {minimum:g}" if strict else f"{minimum:g} or more"
        finite = "numbers" if np.isinf(most) else "finite numbers"
        raise UserError(f"{what} of layer {layer} is {array[layer]}; allowed: {finite}, {bound}")
    return array


def _floats(what, values):
    """`values` as a float64 array of its own, if it is a real number or a list, array or tensor of real numbers."""
    listed = values if isinstance(values, (list, tuple)) else [values]
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iuf" or any(isinstance(value, (bool, str)) for value in listed):
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UserError(f"{what} is {shown(values)}; give one number or a list with one number a layer") from error
