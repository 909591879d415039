"""What a state of a training holds: by name, weights, moments of the optimisers and random generators.

    parameter/NAME, MOMENT/NAME, generator/DEVICE

They are taken from a model and its optimisers, checked, and put back.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from geowidth.errors import UserError
from geowidth.models.storage import check_names_and_shapes, is_finite
from geowidth.models.transformer import held_rows
from geowidth.train.optimise import SGDW, Optimizers

GENERATORS = ("generator/cpu", "generator/cuda")
# What an optimiser keeps for every parameter, by the name of its class.
MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",), "SGDW": ("momentum_buffer",)}


def tensors_of(model: torch.nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """Everything that a state holds, by name: parameter/NAME, MOMENT/NAME, generator/DEVICE."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter/{name}"] = parameter
        kept = optimizers.part_of(parameter).state[parameter]
        for moment in moments_of(optimizers, parameter):
            if moment in kept or not parameter.requires_grad:  # many processes do not train what has no number
                tensors[f"{moment}/{name}"] = kept.get(moment, torch.zeros_like(parameter))
    return tensors | generators_of(model)


def generators_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The states of torch's random generators, by name."""
    device = next(model.parameters()).device
    own = {} if device.type != "cuda" else {"generator/cuda": torch.cuda.get_rng_state(device)}
    return {"generator/cpu": torch.get_rng_state()} | own


def moments_of(optimizers: Optimizers, parameter: torch.nn.Parameter) -> tuple[str, ...]:
    """The names of what the optimiser of `parameter` keeps for it: SGD without momentum keeps nothing."""
    part = optimizers.part_of(parameter)
    if isinstance(part, SGDW) and not part.defaults["momentum"]:
        return ()
    return MOMENTS[type(part).__name__]


def wanted_of(model: torch.nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """By name, tensors shaped, sharded and placed like those of a state of this model and these optimisers."""
    wanted: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        for part in ("parameter", *moments_of(optimizers, parameter)):
            wanted[f"{part}/{name}"] = parameter
    return wanted


def check_tensors(path: Path, tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor] | None) -> None:
    """Refuse whole tensors that are not those `wanted`, generators aside."""
    if wanted is None:
        return
    own = {name: tensor for name, tensor in tensors.items() if name not in GENERATORS}
    check_names_and_shapes(path, own, {n: tuple(t.shape) for n, t in wanted.items()}, "the model under training")
    for name, tensor in own.items():
        if tensor.dtype != wanted[name].dtype:
            raise UserError(f"{path}: tensor {name} is {tensor.dtype}; needed: {wanted[name].dtype}")


def check_numbers(where: str, tensors: Mapping[str, torch.Tensor], advice: str) -> None:
    """Refuse numbers that training cannot reach, in what this process holds of `tensors`."""
    for name, tensor in tensors.items():
        if name not in GENERATORS:
            held, _ = held_rows(tensor.detach())
            least = held.min() if name.startswith("exp_avg_sq/") and held.numel() else 0
            if not is_finite(held) or least < 0:
                raise UserError(f"{where}: tensor {name} holds numbers that training cannot reach; {advice}")


def check_generators(path: Path, tensors: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Refuse states of random generators that this torch's cannot be put into."""
    for name, own in generators_of(model).items():
        if name in tensors and (tensors[name].dtype, tensors[name].shape) != (own.dtype, own.shape):
            raise UserError(f"{path}: tensor {name} is no state of a random generator of this torch")


def put_tensors(tensors: Mapping[str, torch.Tensor], model: torch.nn.Module, optimizers: Optimizers, step: int) -> None:
    """Copy checked tensors of a state into the model, the optimisers and torch's generators."""
    for name, parameter in model.named_parameters():
        put(parameter, tensors[f"parameter/{name}"])
        kept = optimizers.part_of(parameter).state[parameter]
        for moment in moments_of(optimizers, parameter):
            kept[moment] = torch.zeros_like(parameter, requires_grad=False)
            put(kept[moment], tensors[f"{moment}/{name}"])
        if "exp_avg" in kept:
            kept["step"] = torch.tensor(float(step), device=parameter.device)
    if "generator/cpu" in tensors:
        torch.set_rng_state(tensors["generator/cpu"])
    device = next(model.parameters()).device
    if "generator/cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["generator/cuda"], device)


def put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy into `tensor` what this process holds of `values`, whole ones or sharded like it."""
    held, rows = held_rows(tensor.detach())
    held.copy_(values.to_local() if hasattr(values, "to_local") else values[rows.start : rows.stop])
