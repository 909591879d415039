"""Sigmoid taper: wide early layers, narrow late ones, and a steep step between (a taper of arXiv 2606.23670)."""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.allocate.schedules.ends import check_ends
from geowidth.errors import positive


def sigmoid(problem, *, start=1.5, end=0.5, sharpness=10.0):
    """end + (start - end) * s(depth), s a logistic step around the middle, stretched to be 1 first and 0 last.

    sharpness: slope of the logistic function over the whole depth; towards 0 the taper becomes linear.
    """
    start, end = check_ends(start, end)
    # tanh(z/2) is the logistic function up to scale, and keeps its digits where the step is nearly a line.
    step = np.tanh(positive("sharpness", sharpness) * (0.5 - problem.depth) / 2.0)
    return Shape(end + (start - end) * 0.5 * (1.0 + step / np.tanh(sharpness / 4.0)))


RULE = Rule("sigmoid", "wide early, narrow late, with a smooth step in the middle", sigmoid)
