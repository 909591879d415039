"""Which neurons of each layer stay: those with the largest scores."""

from collections.abc import Sequence

import numpy as np
import torch

from geowidth.errors import UserError, whole


def kept_neurons(scores: Sequence[np.ndarray], widths: Sequence[int]) -> list[torch.Tensor]:
    """The `widths[i]` neurons of layer i with the largest scores, int64, ascending; of equal ones the first stay.

    scores: one float array (width,) a layer, as `neuron_scores` gives. Raises UserError for a width that is negative or
    above the layer's own, and for scores that are no numbers.
    """
    if len(scores) != len(widths):
        raise UserError(f"{len(widths)} widths came for {len(scores)} layers; give one a layer")
    return [_largest(layer, *pair) for layer, pair in enumerate(zip(scores, widths, strict=True))]


def _largest(layer, scores, width):
    scores = np.asarray(scores, dtype=np.float64)
    width = whole(f"width of layer {layer}", width, 0, len(scores))
    if np.isnan(scores).any():
        raise UserError(f"the score of neuron {int(np.isnan(scores).argmax())} of layer {layer} is no number")
    order = np.argsort(-scores, kind="stable")[:width]
    return torch.from_numpy(np.sort(order).astype(np.int64))


def standardised(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scores with mean 0 and standard deviation 1 in every layer, so that layers can be compared; 0 where all agree.

    Source: FLAP (An et al., arXiv 2312.11983), adaptive search of the global structure.
    """
    found = []
    for values in scores:
        centred = values - np.mean(values) if len(values) else values
        spread = np.std(centred) if len(values) else 0.0
        found.append(centred / spread if spread > 0 else np.zeros(len(values)))
    return found
