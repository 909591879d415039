"""Cosine taper: Bayat, Behrouz, Courville, "Tapered Language Models" (arXiv 2606.23670)."""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.allocate.schedules.ends import check_ends


def cosine(problem, *, start=1.5, end=0.5):
    """end + (start - end)/2 (1 + cos(pi l/(L-1))), in multiples of the base width."""
    start, end = check_ends(start, end)
    return Shape(end + 0.5 * (start - end) * (1.0 + np.cos(np.pi * problem.depth)))


RULE = Rule("cosine", "wide first, narrow last, along half a cosine", cosine)
