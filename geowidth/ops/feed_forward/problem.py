"""What the backends of the feed-forward layer share: the inputs of one layer, and how its buffers lie in memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from geowidth.ops.activation.functions import ActivationFunction


class FeedForwardProblem(NamedTuple):
    """Inputs of one layer. x (tokens, d); gate, up, down (width, d), gate None when ungated; biases or None."""

    x: torch.Tensor
    gate: torch.Tensor | None
    up: torch.Tensor
    down: torch.Tensor
    gate_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    function: ActivationFunction | None
    input_precision: str = "ieee"

    @property
    def tokens(self):
        return self.x.shape[0]

    @property
    def width(self):
        return self.up.shape[0]

    @property
    def dimension(self):
        return self.x.shape[1]

    def prepared(self, dtype=None):
        """The same with every operand row-major, so that results do not depend on how inputs happened to lie, and with
        weights and biases, not x, in `dtype` (None: as they are)."""
        if dtype is None or dtype == self.x.dtype:
            ready = [t if t is None or t.is_contiguous() else t.contiguous() for t in self[:7]]
        else:
            ready = [self.x.contiguous(), *(None if t is None else t.to(dtype).contiguous() for t in self[1:7])]
        return FeedForwardProblem._make([*ready, *self[7:]])


@dataclass(frozen=True)
class Needs:
    """Which gradients are wanted."""

    x: bool
    gate: bool
    up: bool
    down: bool
    gate_bias: bool
    up_bias: bool

    def slots(self, gated, bias=False):
        """Names of the projections whose weight (or bias) gradients share one buffer, in its order."""
        flags = {"gate": self.gate_bias if bias else self.gate, "up": self.up_bias if bias else self.up}
        return [name for name in (("gate", "up") if gated else ("up",)) if flags[name]]


def padded(width):
    """The row stride of a hidden buffer: width rounded up to a multiple of 8, so that every row starts aligned."""
    return -(-width // 8) * 8


def hidden_buffer(tokens, width, like, count=1):
    """An uninitialised buffer of `count` adjacent hidden matrices (tokens, width), each padded; see `part`."""
    return torch.empty(tokens, count * padded(width), dtype=like.dtype, device=like.device)


def part(buffer, width, index=0):
    """The `index`-th hidden matrix (tokens, width) of a buffer: a view with row stride count * padded(width)."""
    return buffer if buffer.shape[1] == width else buffer.narrow(1, index * padded(width), width)


def gradient_rows(slots, width):
    """Rows of a weight-gradient buffer holding `slots` projections one above the other."""
    return len(slots) * padded(width) if len(slots) > 1 else len(slots) * width


def without_padding(buffer, slots, width):
    """A gradient buffer of `gradient_rows`, the rows after each projection set to zero: no result holds chance bits."""
    if len(slots) > 1:
        for row in (width, padded(width) + width):
            buffer[row : row + padded(width) - width] = 0
    return buffer
