"""The gradient fan-in of a model as it is trained: repeated blocks, losses after every block, blocks left out at random.

One rule holds for all of them. A path from an application of a block to a loss head goes through the block itself, then
along the identity or through one block downstream. Parameters that are applied several times get the paths of all
their applications. A block that is left out with probability p is there for 1 - p of the paths through it, each block
by itself.
"""

from collections.abc import Sequence

import numpy as np

from geowidth.artifacts.per_layer import per_layer
from geowidth.inputs import ArrayLike


def expected_fan_in(order: Sequence[int], head_weights: ArrayLike, kept: ArrayLike | None = None) -> np.ndarray:
    """The fan-in of every block, float64 (blocks,), first block first.

    order         blocks in the order in which a state passes them, each from 0 up, one of several times where it is
                  repeated (ModelConfig.order)
    head_weights  weight of the loss after each of these applications, (applications,); 0 where there is none
    kept          probability that each application is there, (applications,); None: 1

    With weights of (0, ..., 0, 1) and each block once it is L - l + 1 for l = 1..L, with equal weights
    (L-l+1)(L-l+2)/2 (arXiv 2606.26538), and with weights e_k the sum over k >= l of e_k (k - l + 1).
    """
    steps = len(order)
    weights = per_layer("head weight", head_weights, steps)
    there = np.ones(steps) if kept is None else per_layer("probability to be kept", kept, steps)
    paths = np.zeros(max(order) + 1)
    for place, block in enumerate(order):
        # To the head after application k: the identity path, and one through each application in between.
        reach = 1 + np.concatenate([[0.0], np.cumsum(there[place + 1 :])])
        paths[block] += there[place] * (weights[place:] @ reach)
    return paths
