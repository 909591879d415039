"""Optimisers and their learning rate.

AdamW (Loshchilov and Hutter 2019), fused into one kernel, with decay on matrices only. Or Muon (Jordan et al. 2024) by
torch.optim.Muon for the matrices inside the blocks, beside AdamW for embedding, output matrix and norm gains; its
updates are scaled to the size of AdamW's (Liu et al. 2025, `match_rms_adamw`), so one rate serves both. Or SGD with
momentum, whose step is as long as the gradient: the optimiser in which a change of the gradient's size is not undone.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from geowidth.errors import UserError
from geowidth.models.training import TrainingSettings


class Optimizers:
    """The optimisers of one model, stepped as one; every parameter belongs to exactly one of them."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self._owners = {p: part for part in parts for group in part.param_groups for p in group["params"]}

    def groups(self) -> Iterator[dict[str, object]]:
        """All parameter groups."""
        for part in self.parts:
            yield from part.param_groups

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for group in self.groups():
            group["lr"] = rate

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def part_of(self, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        """The optimiser that `parameter` belongs to."""
        return self._owners[parameter]


def make_optimizers(model: torch.nn.Module, settings: TrainingSettings) -> Optimizers:
    """The Optimizers that `settings.optimizer` names, for `model` with its parameters where they will stay."""
    named = list(model.named_parameters())
    if settings.optimizer != "muon":
        make = {"adamw": adamw, "sgd": sgd}[settings.optimizer]
        return Optimizers([make([p for _, p in named], settings)])
    check_muon()
    inner = [p for name, p in named if by_muon(name, p)]
    outer = [p for name, p in named if not by_muon(name, p)]
    return Optimizers([muon(inner, settings), adamw(outer, settings)])


def by_muon(name: str, parameter: torch.nn.Parameter) -> bool:
    """Whether Muon moves a parameter: a matrix inside a block, not an empty one."""
    return name.startswith("blocks.") and parameter.ndim == 2 and parameter.numel() > 0


def check_muon(sharded: bool = False) -> None:
    """Refuse Muon where torch has none, and where every process holds rows of a matrix, which Muon moves as a whole."""
    if sharded:
        raise UserError("optimizer muon moves whole matrices, of which fsdp leaves no process one; use ddp, or adamw")
    if not hasattr(torch.optim, "Muon"):
        raise UserError(
            f"optimizer is 'muon', but torch {torch.__version__} has no Muon; install torch 2.9 or newer, or use adamw"
        )


def adamw(parameters: Sequence[torch.nn.Parameter], settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW with decoupled decay on matrices only: norm gains are not decayed."""
    betas = (settings.beta1, settings.beta2)
    groups = by_decay(parameters, settings)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.epsilon, fused=True)


def by_decay(parameters: Sequence[torch.nn.Parameter], settings: TrainingSettings) -> list[dict[str, Any]]:
    """Parameter groups in which matrices decay and vectors do not."""
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    return [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]


class SGDW(torch.optim.SGD):
    """SGD with momentum whose weight decay is decoupled, as AdamW's: it enters neither gradient nor momentum.

    Source: Loshchilov and Hutter 2019, Algorithm 1.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if group["decay"] and trained:
                torch._foreach_mul_(trained, 1 - group["lr"] * group["decay"])
        super().step()


def sgd(parameters: Sequence[torch.nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """SGDW: decay on matrices only."""
    groups = [{"params": g["params"], "decay": g["weight_decay"]} for g in by_decay(parameters, settings)]
    return SGDW(groups, lr=settings.learning_rate, momentum=settings.momentum)


def muon(parameters: Sequence[torch.nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Muon with Nesterov momentum and decoupled decay. A matrix that holds several (qkv) is one matrix to it."""
    return torch.optim.Muon(
        parameters,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        adjust_lr_fn="match_rms_adamw",
    )


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Rate of step `step` (from 0): a linear rise to the peak, then the fall that `settings.decay` names."""
    rise = max(1, round(settings.warmup * settings.steps))
    if step < rise:
        return settings.learning_rate * (step + 1) / rise
    if settings.decay == "wsd":
        return settings.learning_rate * _stable_then_linear(settings, step)
    share = (step + 1 - rise) / max(1, settings.steps - rise)
    return settings.learning_rate * (
        settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * share)) / 2
    )


def _stable_then_linear(settings, step):
    """The share of the peak at a step of "wsd" past its rise: 1, then down a line to final_rate at the last step."""
    fall = max(1, round(settings.decay_share * settings.steps))
    share = max(0.0, (step + 1 - (settings.steps - fall)) / fall)
    return 1 - (1 - settings.final_rate) * share


def evaluation_steps(settings: TrainingSettings) -> set[int]:
    """The steps (counted from 1) after which the validation loss is taken."""
    return {math.ceil(settings.steps * k / settings.evaluations) for k in range(1, settings.evaluations + 1)}
