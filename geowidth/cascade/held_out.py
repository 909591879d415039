"""Losses of a causal language model on held-out text, window by window: models are compared on the same text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from geowidth import memory
from geowidth.errors import UserError, whole
from geowidth.measure.models import check_data, input_device, vocabulary_of
from geowidth.measure.opening import OpenedModel
from geowidth.text.corpus import Corpus
from geowidth.text.sequences import check_ids


@dataclass(frozen=True)
class HeldOut:
    """Windows of held-out text.

    tokens     int64 (windows, length)
    targets    the same shape: the next token of each, IGNORED where it is none of the text
    settings   where they are from, for a record
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    settings: dict[str, Any]

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(tokens, targets) a few windows at a time."""
        return zip(self.tokens.split(size), self.targets.split(size), strict=True)


IGNORED = -100
BATCH = 8  # windows in a forward pass


def draw_held_out(
    opened: OpenedModel,
    corpus: Corpus,
    split: str,
    *,
    windows: int = 32,
    context: int | None = None,
    seed: int = 0,
    fewer: bool = False,
) -> HeldOut:
    """`windows` windows of a split of `corpus`, drawn without replacement by `seed`, as `opened` reads them.

    context: tokens a window (default: see OpenedModel.sequences). Special tokens around a text are no targets. fewer:
    where a text has fewer windows, all of them are taken, two at least. Raises UserError for a text with fewer windows,
    and for ids the model does not know.
    """
    return several_held_out(opened, corpus, split, (seed,), windows=windows, context=context, fewer=fewer)[0]


def several_held_out(
    opened: OpenedModel,
    corpus: Corpus,
    split: str,
    seeds: Iterable[int],
    *,
    windows: int = 32,
    context: int | None = None,
    fewer: bool = False,
) -> list[HeldOut]:
    """What `draw_held_out` gives for each of the seeds; the text is read once."""
    windows = whole("windows", windows, 2)
    if context is not None and opened.longest is not None and whole("context", context, 2) > opened.longest:
        raise UserError(f"context is {context}; the model takes at most {opened.longest} tokens")
    sequences = opened.held_out(corpus, context, split)
    windows = min(windows, max(2, len(sequences))) if fewer else windows
    if len(sequences) < windows:
        raise UserError(
            f"{windows} windows asked for; the {split} split of {corpus.source!r} has {len(sequences)} of "
            f"{len(sequences[0])} tokens; ask for fewer or give more text"
        )
    facts = {"corpus": corpus.digest, "source": corpus.source, "split": split}
    return [_drawn(opened, sequences, windows, whole("seed", seed, 0), facts) for seed in seeds]


def _drawn(opened, sequences, windows, seed, facts):
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))
    chosen = [sequences[i].long() for i in order[:windows].sort().values.tolist()]
    check_ids(chosen, vocabulary_of(opened.model), type(opened.model).__name__)
    tokens = torch.stack(chosen)
    targets = functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
    targets[:, : max(0, len(opened.prefix) - 1)] = IGNORED
    if opened.suffix:
        targets[:, -1 - len(opened.suffix) :] = IGNORED
    return HeldOut(tokens, targets, {**facts, "seed": seed, "windows": windows, "context": tokens.shape[1]})


@torch.no_grad()
def window_losses(model: torch.nn.Module, text: HeldOut, batch: int = BATCH) -> np.ndarray:
    """Mean loss of every window in nats per token, float64 (windows,), of a model in evaluation mode."""
    check_room(model, text, batch)
    found = []
    for tokens, targets in text.batches(batch):
        losses = token_losses(model, tokens, targets)
        found.append(losses.double().sum(1).cpu() / (targets != IGNORED).sum(1))
    return torch.cat(found).numpy()


def whole_losses(model: torch.nn.Module, text: HeldOut, batch: int = BATCH) -> np.ndarray:
    """The window_losses of a model that others are held against; UserError where one is not finite."""
    losses = window_losses(model, text, batch)
    if not np.isfinite(losses).all():
        window = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise UserError(
            f"the loss of the whole model on window {window} of the text is {losses[window]}, so nothing can be told "
            "of its blocks; give a model of finite weights"
        )
    return losses


def token_losses(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Loss of every token (batch, length) in nats, float32 or wider; 0 where the target is IGNORED."""
    device = input_device(model)
    logits = logits_of(model, tokens.to(device))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).transpose(1, 2)
    return functional.cross_entropy(logits, targets.to(logits.device), ignore_index=IGNORED, reduction="none")


def logits_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (batch, length, vocabulary) of our model, or of a causal one of transformers."""
    if hasattr(model, "generation_config") or hasattr(getattr(model, "config", None), "use_cache"):
        return model(tokens, use_cache=False).logits
    return model(tokens)


def check_room(model: torch.nn.Module, text: HeldOut, batch: int) -> None:
    """Refuse a model without data, and a batch whose logits this machine has no room for."""
    check_data(model)
    logits = min(batch, len(text.tokens)) * text.tokens.shape[1] * (vocabulary_of(model) or 1)
    memory.check(f"a batch of {batch} windows", 3 * 4 * logits, "use a smaller context")


def mean_and_error(values: np.ndarray) -> dict[str, float]:
    """{"mean", "standard_error"} of one value a window, two windows or more."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return {"mean": float(np.mean(values)), "standard_error": error}
