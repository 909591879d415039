"""The parts of one optimiser step: AdamW, its learning rate, gradients gathered in pieces, and the mean loss."""

import math

import torch
from torch.nn import functional

from geowidth.models.training import TrainingSettings

IGNORED = -100  # target of a position that is no token


def adamw(model: torch.nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW with decoupled decay on matrices only: norm gains are not decayed."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.epsilon, fused=True)


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Rate of step `step` (from 0): a linear rise, then half a cosine down to final_rate of the peak at the end."""
    rise = max(1, round(settings.warmup * settings.steps))
    if step < rise:
        return settings.learning_rate * (step + 1) / rise
    share = (step + 1 - rise) / max(1, settings.steps - rise)
    return settings.learning_rate * (
        settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * share)) / 2
    )


def evaluation_steps(settings: TrainingSettings) -> set[int]:
    """The steps (counted from 1) after which the validation loss is taken."""
    return {math.ceil(settings.steps * k / settings.evaluations) for k in range(1, settings.evaluations + 1)}


def accumulate_gradients(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor, microbatch: int) -> float:
    """Add the gradient of the mean loss per token to `.grad`, a few sequences at a time; returns that mean in nats.

    tokens, targets: (batch, length) int64; positions whose target is IGNORED count as no token. Every microbatch is
    weighted by its tokens, so the result does not depend on how the batch is cut (up to rounding); one without tokens
    adds nothing.
    """
    count = int((targets != IGNORED).sum())
    total = 0.0
    for some, wanted in zip(tokens.split(microbatch), targets.split(microbatch), strict=True):
        if count and bool((wanted != IGNORED).any()):
            logits = model(some).flatten(0, 1)
            loss = functional.cross_entropy(logits, wanted.flatten(), ignore_index=IGNORED, reduction="sum") / count
            loss.backward()
            total += loss.item()
    return total


@torch.no_grad()
def mean_loss(model: torch.nn.Module, batch: torch.Tensor, microbatch: int) -> float:
    """Mean loss in nats per token of `model` on windows (n, length + 1) int64."""
    total = 0.0
    for some in batch.split(microbatch):
        logits = model(some[:, :-1]).flatten(0, 1)
        total += functional.cross_entropy(logits, some[:, 1:].flatten(), reduction="sum").item()
    return total / batch[:, 1:].numel()
