"""How alike the gradients of microbatches are in each block: effective rank and mutual cosine.

A block that the loss reaches by many paths may get a large gradient and still few directions to learn in; the norms of
a ledger do not tell. Source of the question: arXiv 2606.26538, which names it as the next step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from geowidth import memory
from geowidth.cascade.blocks import ResidualBlocks
from geowidth.errors import UserError


@dataclass(frozen=True)
class GradientDirections:
    """Of m microbatches, one number a block, float64 (blocks,).

    effective_rank   exp of the entropy of the singular values of the m gradients, as shares of their sum (Roy and
                     Vetterli 2007): 1 where all point one way, at most m. NaN for a block without a gradient
    mutual_cosine    mean cosine between the gradients of two microbatches; those that are zero have none. NaN where
                     there are no two others
    norms            of every microbatch's gradient, (m, blocks)
    """

    effective_rank: np.ndarray
    mutual_cosine: np.ndarray
    norms: np.ndarray

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}


def gradient_directions(blocks: ResidualBlocks, losses: Iterable[Callable[[], torch.Tensor]]) -> GradientDirections:
    """GradientDirections of the microbatches' losses.

    losses: one function a microbatch, two or more, that gives its scalar loss. `.grad` is left as it is. Memory:
    microbatches times the parameters of the blocks, in float32 (float64 where they are).
    """
    losses = list(losses)
    if len(losses) < 2:
        raise UserError(f"{len(losses)} microbatches came; directions are compared between two or more")
    parameters = [[p for p in blocks.parameters(block) if p.requires_grad] for block in range(len(blocks))]
    count = sum(p.numel() for own in parameters for p in own)
    memory.check(f"{len(losses)} gradients of {count:,} parameters", 8 * len(losses) * count, "use fewer microbatches")
    rows = [_gradients(loss(), parameters) for loss in losses]
    grams = [_gram([row[block] for row in rows]) for block in range(len(blocks))]
    return GradientDirections(
        np.array([effective_rank(gram) for gram in grams]),
        np.array([mutual_cosine(gram) for gram in grams]),
        np.sqrt(np.array([gram.diagonal() for gram in grams]).T),
    )


def _gradients(loss, parameters):
    """One flat gradient a block; zeros where the loss does not reach."""
    every = list({id(p): p for own in parameters for p in own}.values())
    found = torch.autograd.grad(loss, every, allow_unused=True, materialize_grads=True)
    by_parameter = {id(p): grad for p, grad in zip(every, found, strict=True)}
    flat = [[_at_least_float32(by_parameter[id(p)]) for p in own] for own in parameters]
    return [torch.cat(own) if own else torch.zeros(1) for own in flat]


def _at_least_float32(grad):
    return grad.reshape(-1).to(torch.promote_types(grad.dtype, torch.float32))


def _gram(rows):
    """(m, m) float64: inner products of gradients, added up in float64 a slice at a time."""
    parts = [part.double() @ part.double().T for part in torch.stack(rows).split(1 << 20, dim=1)]
    return torch.stack(parts).sum(0).cpu().numpy()


def effective_rank(gram: np.ndarray) -> float:
    """exp of the entropy of the singular values of vectors whose inner products are `gram` (m, m); NaN for zeros."""
    values = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0.0, None))
    if not values.sum() > 0:
        return float("nan")
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mutual_cosine(gram: np.ndarray) -> float:
    """Mean cosine between two different vectors whose inner products are `gram` (m, m); zero vectors left out."""
    keep = gram.diagonal() > 0
    inner, norms = gram[np.ix_(keep, keep)], np.sqrt(gram.diagonal()[keep])
    if len(norms) < 2:
        return float("nan")
    cosines = inner / np.outer(norms, norms)
    return float(cosines[~np.eye(len(norms), dtype=bool)].mean())
