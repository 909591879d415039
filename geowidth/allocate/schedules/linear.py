"""Linear taper: the straight line between the first and the last width (one of the tapers of arXiv 2606.23670)."""

from geowidth.allocate.schedules import Rule, Shape
from geowidth.allocate.schedules.ends import check_ends


def linear(problem, *, start=1.5, end=0.5):
    """A straight line over depth from start to end, in multiples of the base width."""
    start, end = check_ends(start, end)
    return Shape(start + (end - start) * problem.depth)


RULE = Rule("linear", "wide first, narrow last, along a straight line", linear)
