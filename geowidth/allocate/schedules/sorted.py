"""Sorted control: another schedule's widths in falling order. Tells the order apart from the spread of the widths."""

import numpy as np

from geowidth.allocate.schedules import Rule
from geowidth.errors import flag


def in_order(widths, problem, *, rising=False):
    """The widths from widest to narrowest, or the other way round with `rising`."""
    rising = flag("rising", rising)
    return np.sort(widths) if rising else np.sort(widths)[::-1]


RULE = Rule("sorted", "control: another schedule's widths from widest to narrowest", in_order, control=True)
