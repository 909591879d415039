"""The gradient fan-in of a model as it is trained: with repeated blocks, early exits, blocks left out at random.

One rule holds for all of them. A path from an application of a block to a loss head goes through the block itself, then
along the identity or through one block downstream. Parameters that are applied several times get the paths of all
their applications. A block that is left out with probability p is there for 1 - p of the paths through it, each block
by itself.
"""

from collections.abc import Sequence

import numpy as np

from geowidth.artifacts.per_layer import per_layer
from geowidth.inputs import ArrayLike
from geowidth.models.config import ModelConfig
from geowidth.models.training import TrainingSettings
from geowidth.train.supervision import exit_weights, mean_rates


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


def predicted_of(model: ModelConfig, training: TrainingSettings) -> tuple[np.ndarray, str]:
    """(fan-in of every block of a model that is trained so, what it counts in words), float64 (layers,).

    Exits and rates that change over the training count with their mean over its steps. Gradients that are scaled to one
    norm come by the same paths before they are scaled, which is where a ledger sees them.
    """
    places, words = len(model.order), ["the identity path and one through each block downstream"]
    weights, kept = np.eye(places)[-1], None
    if training.exit_loss:
        weights = np.mean([exit_weights(training, places, step) for step in range(training.steps)], axis=0)
        words.append("to the loss after every block in its weight")
    if training.layer_dropout:
        kept = 1 - mean_rates(training, places, training.steps)
        words.append("each as often as its blocks are there")
    if model.repeat_times > 1:
        words.append("all applications of a repeated block together")
    if training.equal_gradients:
        words.append("before the gradients are scaled")
    return expected_fan_in(model.order, weights, kept), "; ".join(words)
