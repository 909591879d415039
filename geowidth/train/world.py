"""The processes of one training, as the loop sees them: the device, this one's share of the rows, sums over all.

The loop knows no other way to speak to its neighbours, so one process and many run the same code.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from geowidth.devices import Device, device_named


class World:
    """A training in one process on `device` ("cpu", "cuda", "cuda:N", or "auto": a GPU where there is one).

    rank: the number of this process, from 0. size: how many there are. gradient_factor: what a loss is multiplied by
    before backward, so that the gradients that all processes end up with are those of the sum of their losses.
    """

    rank, size = 0, 1
    gradient_factor = 1.0

    def __init__(self, device: Device = "cpu") -> None:
        self.device = training_device(device)

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all: it writes the files and shows the progress."""
        return self.rank == 0

    def to_json(self) -> dict[str, Any]:
        """Where the training ran, for the environment of its files."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {"device": str(self.device)} | ({} if name is None else {"device_name": name})

    def rows(self, count: int) -> range:
        """The rows of `count` that are this process's; every row is exactly one process's."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of `tensor` (any shape, the same in every process) over all processes."""
        return tensor

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """`model`, on the device already, as the loop calls it. Its parameters are read from `model` after this."""
        return model

    def accumulating(self, network: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[object]:
        """Around forward and backward of one microbatch; last: whether gradients are exchanged after it."""
        return contextlib.nullcontext()

    def clip(self, parameters: Iterable[torch.nn.Parameter], most: float) -> float:
        """Scale the gradients down to a norm over all processes of at most `most`; returns the norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, most))

    def barrier(self) -> None:
        """Wait until all processes are here."""


def training_device(name: Device) -> torch.device:
    """The torch.device of a name; "auto" is the first GPU where there is one, else the CPU. UserError for others."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return device_named(name, also=("auto",))
