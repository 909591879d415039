"""Gradient fan-in: widths in proportion to the number of gradient paths into a block of a pre-norm residual stack.

Source: Ahmad, Nam, Yun, "CascadeFormer: Depth-Tapered Transformers Motivated by Gradient Fan-in Asymmetry"
(arXiv 2606.26538).
"""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, flag


def fan_in(problem, *, supervised=False, head_weights=None):
    """L - l + 1 for block l = 1..L; with a loss head after every block (L-l+1)(L-l+2)/2.

    head_weights: weights e_k of the loss heads, one a layer, for sum over k >= l of e_k (k - l + 1).
    """
    layers = problem.layers
    if head_weights is None:
        supervised = flag("supervised", supervised)
        head_weights = np.ones(layers) if supervised else np.eye(layers)[-1]
    weights = per_layer("head weight", head_weights, layers)
    if not weights[-1] > 0:
        raise UserError(f"the last head weight is {weights[-1]:g}; it must be above 0, or the last layers get no width")
    # Counting paths from the last block back: twice the running sum of the weights.
    return Shape(np.cumsum(np.cumsum(weights[::-1]))[::-1])


RULE = Rule("fan_in", "in proportion to gradient fan-in, plain or deeply supervised", fan_in)
