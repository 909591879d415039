"""Crown layer-wise scaling: widest in the middle, by three-point linear interpolation.

Source: Baroian, Notebomer, "Crown, Frame, Reverse: Layer-Wise Scaling Variants for LLM Pre-Training" (arXiv
2509.06518).
"""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import positive


def crown(problem, *, first=0.5, middle=1.5, last=0.5):
    """Straight lines through first, middle and last."""
    points = [positive("first", first), positive("middle", middle), positive("last", last)]
    return Shape(np.interp(problem.depth, [0.0, 0.5, 1.0], points))


RULE = Rule("crown", "widest in the middle, along two straight lines", crown)
