"""Gradient fan-in: widths in proportion to the number of gradient paths into a block of a pre-norm residual stack.

Source: Ahmad, Nam, Yun, "CascadeFormer: Depth-Tapered Transformers Motivated by Gradient Fan-in Asymmetry"
(arXiv 2606.26538).
"""

import numpy as np

from geowidth.allocate.schedules import Rule, Shape
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, flag
from geowidth.inputs import ArrayLike


def head_weights_of(layers: int, supervised: bool = False, head_weights: ArrayLike | None = None) -> np.ndarray:
    """Weights e_k of the loss heads after each of `layers` blocks, float64 (layers,): the last alone, or all alike
    (`supervised`), or those given, one a layer."""
    if head_weights is None:
        supervised = flag("supervised", supervised)
        head_weights = np.ones(layers) if supervised else np.eye(layers)[-1]
    return per_layer("head weight", head_weights, layers)


def gradient_paths(weights: np.ndarray) -> np.ndarray:
    """Gradient fan-in of every block of a pre-norm residual stack, float64 (layers,).

    weights: e_k of the loss heads, one a layer. Block l has the sum over k >= l of e_k (k - l + 1): for each head the
    identity path and one more through every block between.
    """
    # Counting from the last block back: twice the running sum of the weights.
    return np.cumsum(np.cumsum(weights[::-1]))[::-1]


def fan_in(problem, *, supervised=False, head_weights=None):
    """L - l + 1 for block l = 1..L; with a loss head after every block (L-l+1)(L-l+2)/2.

    head_weights: weights e_k of the loss heads, one a layer, for sum over k >= l of e_k (k - l + 1).
    """
    weights = head_weights_of(problem.layers, supervised, head_weights)
    if not weights[-1] > 0:
        raise UserError(f"the last head weight is {weights[-1]:g}; it must be above 0, or the last layers get no width")
    return Shape(gradient_paths(weights))


RULE = Rule("fan_in", "in proportion to gradient fan-in, plain or deeply supervised", fan_in)
