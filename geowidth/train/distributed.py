"""Many processes of torchrun in one training: each with the whole model (DDP), or each with a part of it (FSDP2).

Both give the losses of one process up to the rounding of sums: the batch of a step and its order are those of one
process, every process takes its rows of it, and gradients and losses are added up over all tokens, not averaged over
processes. Every process runs as many microbatches as the one with most rows, so that none waits for an exchange that
another does not take part in.

FSDP2 splits every parameter by its rows: a tapered width is a number of rows, and a process may get none of them.
Parameters without a number (width 0) belong to nobody and are left out.
"""

import contextlib
import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from geowidth.devices import Device
from geowidth.errors import UserError, choose
from geowidth.models.config import ModelConfig
from geowidth.models.transformer import TaperedTransformer
from geowidth.ranks import PARALLEL, VARIABLES, Group, Ranks, launched, own_device
from geowidth.train.world import World, training_device


def chosen(parallel: str, device: Device) -> tuple[str, str]:
    """(way to share the work, device of this process) of what the user asked for.

    parallel: "auto" is "ddp" where a launcher started several processes, else "none". device: as for World; each of
    several processes takes the GPU of its LOCAL_RANK. Raises UserError where nobody started the processes.
    """
    choose("parallel", parallel, PARALLEL)
    if parallel == "auto":
        parallel = "ddp" if launched() > 1 else "none"
    elif parallel != "none" and not all(os.environ.get(name) for name in VARIABLES):
        raise UserError(
            f"parallel is {parallel!r}, but no launcher started the processes; use "
            "torchrun --standalone --nproc-per-node N -m geowidth train ..."
        )
    if parallel == "none" and launched() > 1:
        raise UserError(f"parallel is 'none', but a launcher started {launched()} processes; use auto, ddp or fsdp")
    return parallel, own_device(str(training_device(device)) if device != "cuda" else "cuda")


def world_of(parallel: str, device: Device, ranks: Ranks) -> World:
    """The World of `chosen` names, in the middle of geowidth.ranks.joined."""
    if parallel == "none":
        return World(device)
    return (Replicated if parallel == "ddp" else Sharded)(device, ranks)


class Shared(Group, World):
    """What the two ways have in common. Gradients come back averaged over processes: losses are multiplied up."""

    def __init__(self, device: Device, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        Group.__init__(self)
        World.__init__(self, device)
        self.gradient_factor = float(self.size)
        self.mesh = init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("data",))
        self.here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def clip(
        self, parameters: Iterable[torch.nn.Parameter], most: float, norms: Sequence[torch.Tensor] | None = None
    ) -> float:
        trained = [p for p in parameters if p.grad is not None]
        if norms is not None:
            return super().clip(trained, most, norms)
        norm = torch.nn.utils.clip_grad_norm_(trained, most)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


class Replicated(Shared):
    """Every process holds the whole model (torch's DistributedDataParallel)."""

    parallel = "ddp"

    def __init__(self, device: Device, ranks: Ranks) -> None:
        super().__init__(device, ranks)
        self.copies = float(self.here)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        without_empty(model)
        tapered = isinstance(model, TaperedTransformer)  # no pass leaves a part of it out
        known = inspect.signature(DistributedDataParallel).parameters
        tables: dict[str, Any] = {
            "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
        }
        return DistributedDataParallel(
            model, device_mesh=self.mesh, gradient_as_bucket_view=True, find_unused_parameters=not tapered, **tables
        )

    def accumulating(self, network: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if last else network.no_sync()  # type: ignore[operator]


class Sharded(Shared):
    """Every process holds its rows of every parameter (torch's fully_shard) and brings a block together to use it."""

    parallel, sharded = "fsdp", True

    def __init__(self, device: Device, ranks: Ranks) -> None:
        super().__init__(device, ranks)
        self.copies = self.here / self.size

    def make(self, config: ModelConfig, seed: int, initial_scales: Sequence[float] | None = None) -> TaperedTransformer:
        """The sharded model: made without memory, split, and only then filled, each process its own rows."""
        with torch.device("meta"):
            model = TaperedTransformer(config, seed=None)
        self.shard(model)
        model.to_empty(device=self.device)
        model.fill_tables()
        model.initialise(seed, initial_scales)
        return model

    def shard(self, model: TaperedTransformer) -> None:
        from torch.distributed.fsdp import fully_shard

        empty = without_empty(model)
        for block in model.blocks:
            fully_shard(block, mesh=self.mesh, ignored_params=empty)
        fully_shard(model, mesh=self.mesh, ignored_params=empty)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    @contextlib.contextmanager
    def accumulating(self, network: torch.nn.Module, last: bool) -> Iterator[None]:
        network.set_requires_gradient_sync(last)  # type: ignore[operator]
        network.set_is_last_backward(last)  # type: ignore[operator]
        yield

    def settle(self, model: torch.nn.Module) -> None:
        model.reshard()  # type: ignore[operator]  # the outermost part stays together after a pass without gradients

    def whole(self, model: TaperedTransformer) -> dict[str, torch.Tensor]:
        self.settle(model)
        found = {}
        for name, parameter in model.named_parameters():  # one by one: no other process ever holds more than one
            whole = parameter.detach()
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            if self.is_first:
                found[name] = whole.cpu()
        return found


def without_empty(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """The parameters of `model` without a number, asked for no gradient from now on: there is nothing to exchange."""
    empty = {parameter for parameter in model.parameters() if not parameter.numel()}
    for parameter in empty:
        parameter.requires_grad_(False)
    return empty
