"""OpenELM's layer-wise scaling: FFN multipliers that rise linearly with depth.

Source: Mehta et al., "OpenELM: An Efficient Language Model Family with Open Training and Inference Framework"
(arXiv 2404.14619): beta from 0.5 in the first layer to 4.0 in the last. Only the ratio matters under a fixed budget.
"""

from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import positive


def openelm(problem, *, beta_first=0.5, beta_last=4.0):
    """In proportion to beta, linear in depth from beta_first to beta_last."""
    first, last = positive("beta_first", beta_first), positive("beta_last", beta_last)
    return Shape(first + (last - first) * problem.depth)


RULE = Rule("openelm", "narrow first, wide last, along a straight line (back-loaded)", openelm)
