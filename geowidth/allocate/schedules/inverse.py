"""Inverse control: wide where another schedule is narrow, in proportion to 1/width, under the same budget."""

import numpy as np

from geowidth.allocate.schedules import Rule


def invert(widths, problem):
    """Reciprocals of the widths, which the frame then scales to the budget."""
    return 1.0 / np.asarray(widths, dtype=np.float64)


RULE = Rule("inverse", "control: wide where another schedule is narrow (1/width)", invert, control=True)
