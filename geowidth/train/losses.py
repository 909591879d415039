"""The loss of a batch, its gradient gathered in pieces, and the loss on held-out windows.

Losses are in nats per token, in float32 whatever the model computes in; their sums are kept in float64 on the device,
so that the processor waits for a GPU once a step and not once a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional

from geowidth.train.world import World

if TYPE_CHECKING:
    from geowidth.train.supervision import SupervisedStep as Step

IGNORED = -100  # target of a position that is no token
# From token ids (rows, length) the document of each, for a mask of attention; None where a row is one document.
Documents: TypeAlias = Callable[[torch.Tensor], torch.Tensor | None]


def accumulate_gradients(
    model: torch.nn.Module,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    microbatch: int,
    world: World | None = None,
    documents: Documents | None = None,
    step: Step | None = None,
) -> float:
    """Add the gradient of the mean loss per token to `.grad`, a few sequences at a time; returns that mean in nats.

    tokens, targets: (rows, length) int64, this process's rows of the batch; positions whose target is IGNORED count as
    no token. Every microbatch is weighted by its tokens, so the result does not depend on how the batch is cut (up to
    rounding); one without tokens adds nothing. step: gives the loss of a piece in place of the model's own
    (geowidth.train.supervision.SupervisedStep).
    """
    world = world or World()
    count = int(world.sum((targets != IGNORED).sum()))
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    starts = range(0, len(tokens), microbatch)
    pieces: list[tuple[Any, ...]] = [
        (*piece, start)
        for piece, start in zip(cut(tokens, targets, microbatch), starts, strict=True)
        if count and bool((piece[1] != IGNORED).any())
    ]
    pieces += [(*piece, None) for piece in idle(tokens, world.most(len(pieces)) - len(pieces))]
    for number, (some, wanted, start) in enumerate(pieces, 1):
        with world.accumulating(model, number == len(pieces)):
            if step is None:
                loss = summed_loss(model, some, wanted, world.device, documents) / count
            else:
                loss = step.loss(model, some, wanted, world.device, documents, start) / count
            (loss * world.gradient_factor).backward()
        total += loss.detach()
    return float(world.sum(total))


@torch.no_grad()
def mean_loss(
    model: torch.nn.Module,
    batch: torch.Tensor,
    microbatch: int,
    world: World | None = None,
    documents: Documents | None = None,
) -> float:
    """Mean loss in nats per token of `model` on windows (n, length + 1) int64, the same n in every process."""
    world = world or World()
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    rows = world.rows(len(batch))
    own = batch[rows.start : rows.stop]
    pieces = list(cut(own[:, :-1], own[:, 1:], microbatch))
    for some, wanted in pieces + idle(own[:, :-1], world.most(len(pieces)) - len(pieces)):
        total += summed_loss(model, some, wanted, world.device, documents)
    return float(world.sum(total)) / batch[:, 1:].numel()


def cut(tokens: torch.Tensor, targets: torch.Tensor, microbatch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and targets a few rows at a time; nothing where there is no row."""
    pieces = zip(tokens.split(microbatch), targets.split(microbatch), strict=True)
    return (piece for piece in pieces if len(piece[0]))


def idle(tokens: torch.Tensor, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`count` pieces of one row without a token that counts, so that every process takes part in every exchange."""
    row = tokens.new_zeros(1, tokens.shape[1])
    return [(row, torch.full_like(row, IGNORED))] * count


def summed_loss(
    model: torch.nn.Module,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    device: torch.device,
    documents: Documents | None = None,
) -> torch.Tensor:
    """The loss of all tokens of one piece, added up: a float32 scalar on `device`."""
    logits = model(*model_inputs(tokens, documents, device))
    return summed_cross_entropy(logits, targets.to(device, non_blocking=True))


def model_inputs(tokens: torch.Tensor, documents: Documents | None, device: torch.device) -> list[torch.Tensor]:
    """What a model is called with for a piece, on `device`: its tokens and, where there is a mask, their documents."""
    inputs = [tokens] if documents is None or (found := documents(tokens)) is None else [tokens, found]
    return [one.to(device, non_blocking=True) for one in inputs]


def summed_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of all tokens added up, in float32 or more: a scalar. logits (rows, length, vocabulary)."""
    logits = logits.flatten(0, 1)
    logits = logits if logits.dtype.itemsize >= 4 else logits.float()
    return functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
