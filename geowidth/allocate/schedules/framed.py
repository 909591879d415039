"""Framed layer-wise scaling: linear in depth, but with a wide first and last layer.

Source: Baroian, Notebomer, "Crown, Frame, Reverse: Layer-Wise Scaling Variants for LLM Pre-Training" (arXiv
2509.06518).
"""

import numpy as np

from geowidth.allocate.problem import whole_number
from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import positive


def framed(problem, *, low=0.5, high=1.5, frame=1):
    """The inner layers rise linearly from low to high; the first and the last `frame` layers are at high."""
    low, high, frame = positive("low", low), positive("high", high), whole_number("frame", frame)
    shape = np.full(problem.layers, high)
    inner = problem.layers - 2 * frame
    if inner > 0:
        shape[frame : frame + inner] = np.linspace(low, high, inner)
    return Shape(shape)


RULE = Rule("framed", "rising with depth between a wide first and a wide last layer", framed)
