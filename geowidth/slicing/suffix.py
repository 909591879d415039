"""Losses of a model that is changed in one layer: what comes before that layer is computed once, by the whole model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from geowidth.cascade.blocks import ResidualBlocks, other_forwards
from geowidth.cascade.held_out import IGNORED, HeldOut, check_room, logits_of, token_losses
from geowidth.measure.models import input_device
from geowidth.measure.states import states_in

CLOSE = 1e-4  # relative: how far a loss from kept states may be from that of a whole pass


class Suffixes:
    """The losses of `text` under a model from one layer on, layer after layer.

    blocks   of the model, which is in evaluation mode
    text     windows
    batch    windows in a forward pass
    whole    losses of all windows under the whole model, float64 (windows,), nats per token
    reuses   whether passes begin at the layer: not where a block runs several times in a pass, nor where the model adds
             to the states between its blocks; then every pass is a whole one, with the same results

    At any time it stands before one layer, the first at the beginning; `losses` are of the model as it is by then.
    """

    def __init__(self, blocks: ResidualBlocks, text: HeldOut, batch: int) -> None:
        check_room(blocks.model, text, batch)
        self.blocks, self.layer = blocks, 0
        self.batches = list(text.batches(batch))
        self.states: list[torch.Tensor | None] = [None] * len(self.batches)
        self.calls, self.lengths = [0] * len(blocks), [0] * len(blocks)
        with self._counting():
            first = self._losses(0)
        rest = [self._losses(i) for i in range(1, len(self.batches))]
        self.whole = np.concatenate([first, *rest])
        self.reuses = self._can_reuse(first)

    def losses(self) -> np.ndarray:
        """Losses of all windows under the model as it is now, changed in this layer alone; float64 (windows,)."""
        return np.concatenate([self._losses(i) for i in range(len(self.batches))])

    def advance(self) -> None:
        """Go to the next layer, past this one as it is now: it must be that of the whole model."""
        if self.reuses:
            self.states = [self._states_after(i, self.layer) for i in range(len(self.batches))]
        self.layer += 1

    def _can_reuse(self, first):
        """Whether the first batch gives the same losses from the states before the middle block as in a whole pass."""
        middle = len(self.blocks) // 2
        if any(count != 1 for count in self.calls) or not middle:
            return False
        self.states[0] = self._states_after(0, middle - 1)
        self.layer = middle
        found = self._losses(0)
        self.layer, self.states[0] = 0, None
        return bool(np.allclose(found, first, rtol=CLOSE, atol=CLOSE))

    @torch.no_grad()
    def _losses(self, index):
        tokens, targets = self.batches[index]
        with self._entering(self.states[index]):
            losses = token_losses(self.blocks.model, tokens, targets)
        return (losses.double().sum(1).cpu() / (targets != IGNORED).sum(1)).numpy()

    @torch.no_grad()
    def _states_after(self, index, layer):
        """States that the block `layer` gives for a batch; the pass ends there."""
        found: list[torch.Tensor] = []

        def stop(module, _, output):
            found.append(states_in(module, output))
            raise _Enough

        handle = self.blocks.modules[layer].register_forward_hook(stop)
        try:
            with self._entering(self.states[index]), contextlib.suppress(_Enough):
                logits_of(self.blocks.model, self.batches[index][0].to(input_device(self.blocks.model)))
        finally:
            handle.remove()
        return found[0]

    @contextlib.contextmanager
    def _entering(self, states: torch.Tensor | None) -> Iterator[None]:
        """Inside, blocks before this layer compute nothing, and what the last of them gives are these states."""
        skipped = () if states is None else range(self.layer)
        with other_forwards({self.blocks.modules[i]: _given(states, self.lengths[i]) for i in skipped}):
            yield

    @contextlib.contextmanager
    def _counting(self):
        """Inside, how often every block runs is counted, and the form of what it gives is noted."""

        def note(index):
            def hook(module, _, output):
                self.calls[index] += 1
                self.lengths[index] = 0 if isinstance(output, torch.Tensor) else len(output)

            return hook

        handles = [module.register_forward_hook(note(i)) for i, module in enumerate(self.blocks.modules)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Enough(Exception):
    """The pass has come as far as it was wanted."""


def _given(states, length):
    """A forward that gives these states, in the form the block gives: a tensor (0), or a tuple of a length."""
    return lambda *_, **__: states if not length else (states, *[None] * (length - 1))
