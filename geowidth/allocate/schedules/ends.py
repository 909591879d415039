"""Checks of the options that shapes over depth share."""

import numbers

import numpy as np

from geowidth.errors import UserError


def positive(what, value):
    """`value` as a float if it is a finite number above 0; otherwise a UserError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (0 < value < np.inf):
        raise UserError(f"{what} is {value!r}; allowed: finite numbers above 0")
    return float(value)


def check_ends(start, end):
    """The first and the last layer's multiple of the base width, both positive."""
    return positive("start", start), positive("end", end)
