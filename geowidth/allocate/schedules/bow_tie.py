"""Bow tie: wide early and late layers around a narrow middle.

Source: Wu et al., "Variable-Width Transformers" (arXiv 2606.18246), which narrows the residual stream with its FFN;
here the residual stream keeps its width and only the FFN follows the profile.
"""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.errors import UserError, positive


def bow_tie(problem, *, edge=1.5, middle=0.5, waist=0.5):
    """Straight lines from edge in the first layer to middle at depth `waist` (0 to 1) and back to edge in the last."""
    edge, middle, waist = positive("edge", edge), positive("middle", middle), positive("waist", waist)
    if not waist < 1:
        raise UserError(f"waist is {waist:g}; allowed: numbers between 0 and 1")
    return Shape(np.interp(problem.depth, [0.0, waist, 1.0], [edge, middle, edge]))


RULE = Rule("bow_tie", "wide first and last, narrow in the middle", bow_tie)
