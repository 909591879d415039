"""The rules by which blocks are pruned: each gives every block a score, and the smallest scores go first.

An extension (geowidth.registry) adds a rule with `RULES.register(Rule(...))`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from geowidth import memory
from geowidth.artifacts.ledger import Ledger
from geowidth.artifacts.per_layer import per_layer
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import HeldOut, check_room, token_losses
from geowidth.cascade.importance import evaluating
from geowidth.errors import UserError, whole
from geowidth.registry import Registry
from geowidth.train.world import World

CALIBRATION_BATCH = 4  # windows in a pass whose activations, or gradients, are kept


@dataclass(frozen=True)
class Evidence:
    """What a rule may look at.

    blocks   of the model to prune, in evaluation mode
    text     windows of text to look at the model with; None where no rule asked for any
    ledger   of the model's training, or None
    seed     of rules that draw
    """

    blocks: ResidualBlocks
    text: HeldOut | None = None
    ledger: Ledger | None = None
    seed: int = 0


@dataclass(frozen=True)
class Rule:
    """A rule. score: Evidence -> one finite number a block; the smallest goes first. reads: "text" and "ledger", those
    of the two that it needs. seeded: whether another seed may order the blocks otherwise."""

    name: str
    summary: str
    score: Callable[[Evidence], np.ndarray]
    reads: tuple[str, ...] = field(default=())
    seeded: bool = False


def block_scores(rule: str, evidence: Evidence, world: World | None = None) -> np.ndarray:
    """Scores of all blocks by the rule of a name, float64 (blocks,); raises UserError where its evidence is missing.

    world: the processes that each look at text of their own. Scores are summed over them, so that all see the same.
    """
    chosen = RULES[rule]
    for name in chosen.reads:
        if getattr(evidence, name) is None:
            raise UserError(f"rule {rule} needs a {name}, and none came")
    with evaluating(evidence.blocks.model):
        scores = per_layer(
            f"score by {rule}", chosen.score(evidence), len(evidence.blocks), minimum=-sys.float_info.max
        )
    return scores if world is None else world.sum(torch.from_numpy(scores).to(world.device)).cpu().numpy()


def removal_order(scores: np.ndarray) -> tuple[int, ...]:
    """The blocks in the order in which they go: by score, of equal ones the first of the model first.

    A function of the scores alone: processes that hold the same (summed) scores decide the same.
    """
    return tuple(int(block) for block in np.argsort(scores, kind="stable"))


def by_ledger(evidence: Evidence) -> np.ndarray:
    """Accumulated gradient shares of the training."""
    ledger = evidence.ledger
    if ledger is None or len(ledger.blocks) != len(evidence.blocks):
        found = 0 if ledger is None else len(ledger.blocks)
        raise UserError(
            f"the ledger has {found} blocks, the model {len(evidence.blocks)}; give the one of its training"
        )
    return ledger.shares


@torch.no_grad()
def by_similarity(evidence: Evidence) -> np.ndarray:
    """Mean angle between a block's input and output over all tokens but the first of a window, in radians."""
    angles, tokens = [0.0] * len(evidence.blocks), 0

    def read(block, before, after):
        angles[block] += float(angles_between(before[:, 1:], after[:, 1:]).sum())

    model, text = evidence.blocks.model, _text(evidence)
    with evidence.blocks.reading(read):
        for some, targets in text.batches(CALIBRATION_BATCH):
            token_losses(model, some, targets)
            tokens += some[:, 1:].numel()
    return np.array(angles) / tokens


def angles_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Angles between rows (..., d) of two tensors, float64 (...), in the chord form of geowidth.geometry.

    A row of zeros, which has no direction, gives pi / 2 with any other.
    """
    x, y = (torch.nn.functional.normalize(v.double(), dim=-1, eps=1e-300) for v in (x, y))
    return 2 * torch.atan2((x - y).norm(dim=-1), (x + y).norm(dim=-1))


def by_taylor(evidence: Evidence) -> np.ndarray:
    """Sum over a block's parameters of |parameter * gradient of the mean loss|, the change of the loss to first order.

    Source: Molchanov et al. (CVPR 2019); for whole blocks Kim et al., "Shortened LLaMA" (arXiv 2402.02834).
    """
    blocks, text = evidence.blocks, _text(evidence)
    parameters = [blocks.parameters(block) for block in range(len(blocks))]
    every = list({id(p): p for own in parameters for p in own}.values())
    memory.check("gradients of all blocks", 8 * sum(p.numel() for p in every), "take another rule")
    gradients = _gradients(blocks.model, every, text)
    return np.array(
        [sum(float((p.detach() * gradients[id(p)]).abs().double().sum()) for p in own) for own in parameters]
    )


def _gradients(model, parameters, text):
    """{id: gradient of the mean loss over the text} of parameters; `.grad` and what needs gradients are left as is."""
    needed = [p.requires_grad for p in parameters]
    total = {id(p): torch.zeros_like(p, dtype=_at_least_float32(p), requires_grad=False) for p in parameters}
    count = int((text.targets >= 0).sum())
    try:
        for p in parameters:
            p.requires_grad_(True)
        with torch.enable_grad():
            for tokens, targets in text.batches(CALIBRATION_BATCH):
                loss = token_losses(model, tokens, targets).sum() / count
                found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                for p, gradient in zip(parameters, found, strict=True):
                    total[id(p)] += gradient
    finally:
        for p, flag in zip(parameters, needed, strict=True):
            p.requires_grad_(flag)
    return total


def _at_least_float32(p):
    """What gradients of many batches are added up in: in half precision small ones would be lost."""
    return torch.promote_types(p.dtype, torch.float32)


def by_magnitude(evidence: Evidence) -> np.ndarray:
    """Sum of the absolute values of a block's parameters."""
    blocks = evidence.blocks
    return np.array(
        [sum(float(p.detach().abs().double().sum()) for p in blocks.parameters(i)) for i in range(len(blocks))]
    )


def by_chance(evidence: Evidence) -> np.ndarray:
    """A seeded order, uniform over all."""
    return np.random.default_rng(whole("seed", evidence.seed, 0)).permutation(len(evidence.blocks)).astype(float)


def _text(evidence):
    check_room(evidence.blocks.model, evidence.text, CALIBRATION_BATCH)
    return evidence.text


RULES = Registry(
    "pruning rule",
    Rule,
    (
        Rule("ledger", "smallest accumulated gradient share of the training", by_ledger, reads=("ledger",)),
        Rule("similarity", "smallest angle between a block's input and output", by_similarity, reads=("text",)),
        Rule("taylor", "smallest sum of |parameter * gradient|", by_taylor, reads=("text",)),
        Rule("magnitude", "smallest sum of |parameter|", by_magnitude),
        Rule("random", "a seeded order", by_chance, seeded=True),
    ),
)
