"""Reverse layer-wise scaling: OpenELM's line the other way round, front-loaded.

Source: Baroian, Notebomer, "Crown, Frame, Reverse: Layer-Wise Scaling Variants for LLM Pre-Training" (arXiv
2509.06518). The control that turns any schedule round is `reversed`.
"""

from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import positive


def reverse(problem, *, beta_first=4.0, beta_last=0.5):
    """In proportion to beta, linear in depth from beta_first down to beta_last."""
    first, last = positive("beta_first", beta_first), positive("beta_last", beta_last)
    return Shape(first + (last - first) * problem.depth)


RULE = Rule("reverse", "OpenELM's line reversed: wide first, narrow last, ratio 8", reverse)
