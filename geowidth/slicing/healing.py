"""Healing: a short training of a sliced model, on the text's own next tokens or on the whole model's predictions.

AdamW with the learning rate of geowidth.train (a linear rise, then half a cosine), every parameter trained, on windows
of the training split. Distillation is the Kullback-Leibler divergence from the whole model's next-token distribution to
the sliced one's, at temperature 1, averaged over tokens (Hinton, Vinyals and Dean 2015; Muralidharan et al. 2024 heal
sliced models with it alone). States lie in a folder, and a second call goes on from the newest with the same bits.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from geowidth import memory
from geowidth.cascade.held_out import IGNORED, HeldOut, logits_of, token_losses
from geowidth.errors import UserError, flag, positive, whole
from geowidth.measure.models import input_device
from geowidth.models.training import TrainingSettings
from geowidth.progress import Progress
from geowidth.train.loop import interrupts
from geowidth.train.optimise import Optimizers, learning_rate, make_optimizers
from geowidth.train.state import drop_states, load_state, save_state

SAVE_SECONDS = 120.0
STATE_COPIES = 4  # of the parameters in float32: weights, gradients, two moments


@dataclass(frozen=True)
class Healing:
    """How a sliced model is healed.

    steps, batch    optimiser steps, and windows of text in each
    microbatch      windows in memory at once; the gradient is that of the whole batch
    learning_rate   the highest
    distil          learn the whole model's predictions, not the next token alone
    """

    steps: int
    batch: int = 8
    microbatch: int = 4
    learning_rate: float = 1e-4
    distil: bool = False

    def __post_init__(self):
        for name in ("steps", "batch", "microbatch"):
            whole(f"heal {name}", getattr(self, name), 1)
        positive("heal learning rate", self.learning_rate)
        flag("distil", self.distil)

    @property
    def settings(self) -> TrainingSettings:
        """Those of geowidth.train. No decay: the weights are trained ones, and not to be shrunk."""
        pieces = min(self.batch, self.microbatch)
        return TrainingSettings(self.steps, self.batch, pieces, learning_rate=self.learning_rate, weight_decay=0.0)

    @property
    def windows(self) -> int:
        """Windows of text that all steps take."""
        return self.steps * self.batch


def check_room_to_heal(model: torch.nn.Module) -> None:
    """Raise a UserError where this machine has no room for the gradients and moments of `model`."""
    if input_device(model).type == "cpu":
        size = (STATE_COPIES - 1) * 4 * sum(p.numel() for p in model.parameters())
        memory.check("healing: gradients and moments", size, "leave --heal out, or use a machine with more")


def heal(
    student: torch.nn.Module,
    text: HeldOut,
    healing: Healing,
    folder: Path,
    *,
    teacher: torch.nn.Module | None = None,
    seed: int = 0,
    save_seconds: float = SAVE_SECONDS,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Train `student`, a causal model in float32, in place; returns {"first", "last", "steps", "tokens", "seconds"}.

    text       windows to train on; step s takes the next `healing.batch` of an order drawn by `seed`, around and around
    folder     where states are kept: what an earlier call left there is gone on from
    teacher    the whole model, for healing.distil
    stop       asked after every step; when true the state is kept and KeyboardInterrupt raised, as on Ctrl-C
    first, last: the loss of the first and of the last step, in nats a token (distilled: a divergence)
    """
    if healing.distil and teacher is None:
        raise UserError("distillation learns from the whole model; give it as teacher, or heal without --distil")
    settings = healing.settings
    optimizers = make_optimizers(student, settings)
    per_step = int((text.targets[0] != IGNORED).sum()) * healing.batch
    done = load_state(folder, student, optimizers, settings.steps, per_step)
    state = done or {"step": 0, "tokens": 0, "seconds": 0.0, "best": 0.0}
    first = state["best"]
    began, saved = time.monotonic() - state["seconds"], time.monotonic()
    loss = first
    with interrupts(stop) as interrupted, Progress(settings.steps, "heal") as progress, _frozen(teacher):
        progress.resume_at(state["step"])
        for step in range(state["step"], settings.steps):
            loss = _step(student, teacher if healing.distil else None, text, settings, optimizers, step, seed)
            first = loss if step == 0 else first
            now = {"step": step + 1, "tokens": (step + 1) * per_step, "seconds": time.monotonic() - began}
            # After the last step nothing is left to stop or to go on with: the caller has it.
            stopping = interrupted() and step + 1 < settings.steps
            if stopping or (time.monotonic() - saved >= save_seconds and step + 1 < settings.steps):
                save_state(folder, student, optimizers, {**now, "best": first})
                saved = time.monotonic()
            if stopping:
                raise KeyboardInterrupt
            progress.step(text=f"loss {loss:.4f}")
    return {"first": first, "last": loss, "steps": settings.steps, "tokens": settings.steps * per_step,
            "seconds": time.monotonic() - began}  # fmt: skip


def forget(folder: Path) -> None:
    """Remove the states in a folder: the healed model is kept elsewhere."""
    drop_states(folder)


@contextlib.contextmanager
def _frozen(teacher):
    """The whole model keeps no gradients."""
    wanted = [] if teacher is None else [p for p in teacher.parameters() if p.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


def _step(
    student: torch.nn.Module,
    teacher: torch.nn.Module | None,
    text: HeldOut,
    settings: TrainingSettings,
    optimizers: Optimizers,
    step: int,
    seed: int,
) -> float:
    """One step of the optimiser; its loss in nats a token."""
    rows = batch_rows(len(text.tokens), settings.batch, step, seed)
    tokens, targets = text.tokens[rows], text.targets[rows]
    count = int((targets != IGNORED).sum())
    optimizers.set_rate(learning_rate(settings, step))
    optimizers.zero_grad()
    total = 0.0
    for some, wanted in zip(tokens.split(settings.microbatch), targets.split(settings.microbatch), strict=True):
        loss = _summed(student, teacher, some, wanted) / count
        loss.backward()
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.clip)
    if not bool(torch.isfinite(norm)):
        raise UserError(f"healing diverged at step {step + 1}; lower --heal-rate (it was {settings.learning_rate:g})")
    optimizers.step()
    return total


def batch_rows(count: int, batch: int, step: int, seed: int) -> torch.Tensor:
    """Rows (batch,) int64 of step `step` out of `count`: every row once, in an order drawn by `seed`, before any again.

    A function of the step alone, so that nothing of it has to be kept.
    """
    places = torch.arange(step * batch, (step + 1) * batch)
    rounds = places // count
    rows = torch.empty(batch, dtype=torch.int64)
    for number in rounds.unique().tolist():
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + number))
        rows[rounds == number] = order[places[rounds == number] % count]
    return rows


def _summed(student, teacher, tokens, targets):
    """The loss of all tokens, added up."""
    if teacher is None:
        return token_losses(student, tokens, targets).sum()
    return divergences(student, teacher, tokens, targets).sum()


def divergences(
    student: torch.nn.Module, teacher: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """KL(teacher || student) of the next token, in nats, (tokens that count,), where targets are not IGNORED."""
    device = input_device(student)
    tokens, counts = tokens.to(device), (targets != IGNORED).to(device)
    with torch.no_grad():
        wanted = functional.log_softmax(logits_of(teacher, tokens)[counts].float(), dim=-1)
    found = functional.log_softmax(logits_of(student, tokens)[counts].float(), dim=-1)
    return functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
