"""The rules by which neurons stay: each gives every neuron a score, and the largest stay.

An extension (geowidth.registry) adds a rule with `NEURON_RULES.register(NeuronRule(...))`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from geowidth.cascade.held_out import IGNORED, HeldOut, check_room, token_losses
from geowidth.cascade.importance import evaluating
from geowidth.errors import UserError, whole
from geowidth.measure.models import check_data
from geowidth.registry import Registry
from geowidth.slicing.ffns import FFNs
from geowidth.slicing.hidden import HiddenStatistics, hidden_statistics

BATCH = 8  # windows in a forward pass
TAYLOR_BATCH = 4  # windows in a pass whose activations are kept for a gradient


@dataclass(frozen=True)
class NeuronEvidence:
    """What a rule may look at.

    ffns    of the model, which is in evaluation mode
    text    calibration windows; None where none came
    batch   windows in a forward pass; None: each rule's own
    seed    of rules that draw
    """

    ffns: FFNs
    text: HeldOut | None = None
    batch: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class NeuronRule:
    """A rule. score: NeuronEvidence -> one float64 (width,) array a layer; the largest stay. reads_text: whether it
    needs calibration text. gradients: whether it needs a backward pass, which a model that is streamed cannot have."""

    name: str
    summary: str
    score: Callable[[NeuronEvidence], list[np.ndarray]]
    reads_text: bool = True
    gradients: bool = False


def neuron_scores(
    ffns: FFNs, text: HeldOut | None, rule: str = "activation", *, batch: int | None = None, seed: int = 0
) -> list[np.ndarray]:
    """Scores of all neurons by the rule of a name, one float64 array (width,) a layer; the largest stay.

    text: calibration windows, None for rules that read none. batch: windows in a forward pass; changes nothing but
    memory and speed, up to rounding. Raises UserError for a rule that lacks its text, and for scores that are no
    numbers, as those of a model whose states are not finite.
    """
    chosen = NEURON_RULES[rule]
    batch = None if batch is None else whole("batch", batch, 1)
    if chosen.reads_text:
        if text is None:
            raise UserError(f"neuron rule {rule} needs calibration text, and none came")
        check_data(ffns.model)
    with evaluating(ffns.model):
        scores = chosen.score(NeuronEvidence(ffns, text, batch, seed))
    for layer, (found, width) in enumerate(zip(scores, ffns.widths, strict=True)):
        if found.shape != (width,) or not np.isfinite(found).all():
            raise UserError(f"neuron rule {rule} gives layer {layer} scores that are not {width} finite numbers")
    return scores


def _statistics(evidence: NeuronEvidence) -> list[HiddenStatistics]:
    assert evidence.text is not None
    return hidden_statistics(evidence.ffns, evidence.text, evidence.batch or BATCH)


def by_activation(evidence: NeuronEvidence) -> list[np.ndarray]:
    """rms(h_j) |W_d[:, j]| over all tokens: the rule of Wanda (Sun et al., arXiv 2306.11695), for whole neurons."""
    return [
        (found.root_mean_square * ffn.column_norms()).numpy()
        for found, ffn in zip(_statistics(evidence), evidence.ffns, strict=True)
    ]


def by_fluctuation(evidence: NeuronEvidence) -> list[np.ndarray]:
    """Sample variance of h_j over all tokens, times |W_d[:, j]|^2.

    Source: FLAP (An et al., arXiv 2312.11983), fluctuation metric; see selection.standardised for its comparison
    across layers, and `bias` of geowidth.slicing.apply for its compensation.
    """
    return [
        (found.variance * ffn.column_norms().square()).numpy()
        for found, ffn in zip(_statistics(evidence), evidence.ffns, strict=True)
    ]


def by_minitron(evidence: NeuronEvidence) -> list[np.ndarray]:
    """Mean of |h_j| over the tokens of a window, then the Euclidean norm over windows; the down-projection is left out.

    Source: Minitron (Muralidharan et al., arXiv 2407.14679): mean along the sequence, L2 along the batch, which they
    find best. Its formula sums the first projection, which of a gated FFN could be either of two; taken here is |h|,
    the input of the second, as NVIDIA's Model Optimizer does it.
    """
    return [found.mean_size_norm.numpy() for found in _statistics(evidence)]


def by_taylor(evidence: NeuronEvidence) -> list[np.ndarray]:
    """Mean over windows of |sum over a window's tokens of h_j dL/dh_j|, L the window's mean loss: what the loss changes
    to first order when h_j becomes 0.

    Source: Molchanov et al., "Pruning convolutional neural networks for resource efficient inference" (ICLR 2017),
    equation 8, with a window as the example and its tokens as the positions of a feature map.
    """
    ffns, text = evidence.ffns, evidence.text
    assert text is not None
    if not ffns.family.causal:
        raise UserError(f"neuron rule taylor needs next-token losses, and a {type(ffns.model).__name__} gives none")
    batch = evidence.batch or TAYLOR_BATCH
    check_room(ffns.model, text, batch)
    totals = [torch.zeros(width, dtype=torch.float64) for width in ffns.widths]
    needed = [(p, p.requires_grad) for p in ffns.model.parameters()]
    try:
        for parameter, _ in needed:
            parameter.requires_grad_(False)
        for tokens, targets in text.batches(batch):
            _add_products(ffns, tokens, targets, totals)
    finally:
        for parameter, flag in needed:
            parameter.requires_grad_(flag)
    return [(total / len(text.tokens)).numpy() for total in totals]


def _add_products(ffns, tokens, targets, totals):
    """Add every window's |sum of h dL/dh| to the totals, from one forward and one backward pass."""
    seen: list[tuple[int, torch.Tensor]] = []

    def read(layer, h):
        h = h if h.requires_grad else h.detach().requires_grad_()  # layer 0: nothing below it needs gradients
        seen.append((layer, h))
        return h

    with torch.enable_grad(), ffns.reading(read):
        losses = token_losses(ffns.model, tokens, targets).sum(1) / (targets != IGNORED).sum(1)
        found = torch.autograd.grad(losses.sum(), [h for _, h in seen])
    for (layer, h), gradient in zip(seen, found, strict=True):
        products = (h.detach().double() * gradient).reshape(*tokens.shape, h.shape[-1])
        totals[layer] += products.sum(1).abs().sum(0).cpu()


def by_magnitude(evidence: NeuronEvidence) -> list[np.ndarray]:
    """Product of the Euclidean norms of a neuron's weights: its row of gate and of up (with their biases), its column
    of down. No rescaling of one against another, which leaves the function as it is, changes the product."""
    return [(ffn.row_norms() * ffn.column_norms()).numpy() for ffn in evidence.ffns]


def by_chance(evidence: NeuronEvidence) -> list[np.ndarray]:
    """A seeded order in every layer, uniform over all."""
    generator = np.random.default_rng(whole("seed", evidence.seed, 0))
    return [generator.permutation(width).astype(np.float64) for width in evidence.ffns.widths]


NEURON_RULES = Registry(
    "neuron rule",
    NeuronRule,
    (
        NeuronRule("activation", "root mean square of the neuron times the norm of its column (Wanda)", by_activation),
        NeuronRule("fluctuation", "variance of the neuron times its column's squared norm (FLAP)", by_fluctuation),
        NeuronRule("taylor", "first-order change of the loss without the neuron", by_taylor, gradients=True),
        NeuronRule("minitron", "mean size of the neuron in a window, L2 over windows (Minitron)", by_minitron),
        NeuronRule("magnitude", "product of the norms of the neuron's weights", by_magnitude, reads_text=False),
        NeuronRule("random", "a seeded order", by_chance, reads_text=False),
    ),
)
