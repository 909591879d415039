"""Importance of every block: what the loss grows by when the block is left out, paired over windows of text."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import BATCH, HeldOut, mean_and_error, whole_losses, window_losses
from geowidth.progress import Progress


@dataclass(frozen=True)
class Importance:
    """Losses on held-out text in nats per token, one block left out at a time.

    blocks        their paths in the model
    full          of every window under the whole model, (windows,)
    differences   loss of every window without a block, minus `full`: (blocks, windows)
    settings      of the text
    """

    blocks: tuple[str, ...]
    full: np.ndarray
    differences: np.ndarray
    settings: dict[str, Any]

    @property
    def values(self) -> np.ndarray:
        """Importance of each block, (blocks,): the mean difference over windows."""
        return self.differences.mean(1)

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard error of each value over the windows, (blocks,). The windows are paired: their own spread is out."""
        return self.differences.std(1, ddof=1) / np.sqrt(self.differences.shape[1])

    def to_json(self) -> dict[str, Any]:
        return {
            "blocks": list(self.blocks),
            "loss": mean_and_error(self.full),
            "importance": self.values.tolist(),
            "standard_errors": self.standard_errors.tolist(),
            "text": self.settings,
        }


def block_importance(
    blocks: ResidualBlocks, text: HeldOut, batch: int = BATCH, watch: Callable[[], object] | None = None
) -> Importance:
    """The Importance of the blocks of a causal language model: each left out in turn, the rest untouched.

    Modes are restored. batch: windows in a forward pass. watch: called after every one of the len(blocks) + 1 passes
    over the text (None: a progress bar is shown).
    """
    with contextlib.ExitStack() as stack:
        if watch is None:
            watch = stack.enter_context(Progress(len(blocks) + 1, "importance", unit="block")).step
        stack.enter_context(evaluating(blocks.model))
        full = whole_losses(blocks.model, text, batch)
        watch()
        differences = []
        for block in range(len(blocks)):
            with blocks.without([block]):
                differences.append(window_losses(blocks.model, text, batch) - full)
            watch()
    return Importance(blocks.names, full, np.stack(differences), text.settings)


class evaluating:
    """Inside, a model is in evaluation mode; afterwards every module is in the mode it was in."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        for module, mode in self.modes:
            module.training = mode
