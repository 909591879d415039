"""AdamW and its learning rate."""

import math

import torch

from geowidth.models.training import TrainingSettings


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
