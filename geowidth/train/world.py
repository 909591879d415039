"""The processes of one training, as the loop sees them: the device, this one's share of the rows, sums over all.

The loop knows no other way to speak to its neighbours, so one process and many run the same code. `World` is one
process alone; geowidth.train.distributed has those of many.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from geowidth.devices import Device, device_named
from geowidth.models.config import ModelConfig
from geowidth.models.transformer import TaperedTransformer
from geowidth.ranks import Ranks


class World(Ranks):
    """A training in one process on `device` ("cpu", "cuda", "cuda:N", or "auto": a GPU where there is one).

    gradient_factor: what a loss is multiplied by before backward, so that the gradients that all processes end up with
    are those of the sum of their losses. copies: how often this machine holds every parameter. sharded: whether each
    process holds a part of every parameter. parallel: the name of the way in which processes share the work.
    """

    gradient_factor, copies, sharded, parallel = 1.0, 1.0, False, "none"

    def __init__(self, device: Device = "cpu") -> None:
        self.device = training_device(device)

    def to_json(self) -> dict[str, Any]:
        """Where the training ran, for the environment of its files."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        many = {"processes": self.size, "parallel": self.parallel} if self.size > 1 else {}
        return {"device": str(self.device)} | ({} if name is None else {"device_name": name}) | many

    def make(self, config: ModelConfig, seed: int, initial_scales: Sequence[float] | None = None) -> TaperedTransformer:
        """The model with its initial values, on the device."""
        return TaperedTransformer(config, seed, initial_scales).to(self.device)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """`model`, which `make` made, as the loop calls it. Its parameters are read from `model` after this."""
        return model

    def accumulating(self, network: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[object]:
        """Around forward and backward of one microbatch; last: whether gradients are exchanged after it."""
        return contextlib.nullcontext()

    def clip(
        self, parameters: Iterable[torch.nn.Parameter], most: float, norms: Sequence[torch.Tensor] | None = None
    ) -> float:
        """Scale the gradients down to a norm over all processes of at most `most`; returns the norm before.

        norms: of the single gradients, in the order of the parameters that have one, where they are known already: the
        same bits for less work.
        """
        if norms is None:
            return float(torch.nn.utils.clip_grad_norm_(parameters, most))
        norm = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return float(norm)

    def settle(self, model: torch.nn.Module) -> None:
        """Make the parameters of `model` those that the optimisers know, after whatever passes it has been through."""

    def whole(self, model: TaperedTransformer) -> dict[str, torch.Tensor]:
        """The parameters of `model` by name; in processes other than the first {}."""
        return model.state_dict() if self.is_first else {}


def training_device(name: Device) -> torch.device:
    """The torch.device of a name; "auto" is the first GPU where there is one, else the CPU. UserError for others."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return device_named(name, also=("auto",))
