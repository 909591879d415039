"""Models on disk: model.json (the ModelConfig) and model.safetensors (the parameters) in one folder.

Every tensor is checked against the config before it is used. A file with missing, extra, mis-shaped or non-finite
tensors, or whose widths are not those of model.json, is refused in one line that names the tensor.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from geowidth import memory, records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.models.config import ModelConfig
from geowidth.models.transformer import TaperedTransformer
from geowidth.tensors import read_tensors, write_tensors

KIND, SCHEMA = "geowidth.model", 1
CONFIG_FILE, TENSOR_FILE = "model.json", "model.safetensors"


def save_model(model: TaperedTransformer, folder: PathLike) -> None:
    """Write `model` (a TaperedTransformer) to `folder`; each file is replaced whole or not at all."""
    save_parameters(model.state_dict(), model.config, folder)


def save_parameters(parameters: Mapping[str, torch.Tensor], config: ModelConfig, folder: PathLike) -> None:
    """Write a model as `save_model` does, from its parameters by name."""
    folder = Path(folder)
    write_tensors(folder / TENSOR_FILE, parameters)
    records.write_json(folder / CONFIG_FILE, {"kind": KIND, "schema": SCHEMA, "config": config.to_json()})


def load_model(folder: PathLike) -> TaperedTransformer:
    """The TaperedTransformer in `folder`, in evaluation mode, with the dtype of its tensors.

    Raises UserError for a missing or damaged file and for tensors that do not fit model.json.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist; name a folder that holds {CONFIG_FILE}")
    record = records.read_json(folder / CONFIG_FILE, KIND, SCHEMA)
    try:
        config = ModelConfig.from_json(record.get("config"))
    except UserError as error:
        raise UserError(f"{folder / CONFIG_FILE}: {error}") from error
    tensors, _ = read_tensors(folder / TENSOR_FILE)
    check_tensors(folder / TENSOR_FILE, tensors, config)
    size = 2 * 4 * config.context * config.head_dimension
    memory.check(
        f"{folder / CONFIG_FILE}: a context of {config.context} tokens", size, "use the context it was trained with"
    )
    model = TaperedTransformer(config, seed=None).to(next(iter(tensors.values())).dtype)
    model.load_state_dict(tensors)
    return model.eval()


def check_tensors(path: PathLike, tensors: Mapping[str, torch.Tensor], config: ModelConfig) -> None:
    """Raise a UserError that names the first tensor of `tensors` that does not fit `config` or is not finite."""
    if config.layers > len(tensors):  # before as many blocks are made as a file says
        raise UserError(f"{path} holds {len(tensors)} tensors; {CONFIG_FILE} says {config.layers} layers")
    try:
        with torch.device("meta"):
            wanted = {name: tuple(p.shape) for name, p in TaperedTransformer(config, seed=None).named_parameters()}
    except (RuntimeError, OverflowError, TypeError) as error:  # a product of sizes beyond 2**63
        raise UserError(f"{path} cannot hold a model of the sizes that {CONFIG_FILE} says; use its own") from error
    check_names_and_shapes(path, tensors, wanted)
    dtype = next(iter(tensors.values())).dtype
    for name in wanted:
        if tensors[name].dtype != dtype or not dtype.is_floating_point:
            raise UserError(
                f"{path}: tensor {name} is {tensors[name].dtype}; needed: one floating dtype for all tensors"
            )
        if not is_finite(tensors[name]):
            raise UserError(f"{path}: tensor {name} holds NaN or infinity; use another checkpoint")


def check_names_and_shapes(
    path: PathLike,
    tensors: Mapping[str, torch.Tensor],
    wanted: Mapping[str, tuple[int, ...]],
    source: str = CONFIG_FILE,
) -> None:
    """Raise a UserError for the first tensor that is missing, not in `wanted` {name: shape}, or of another shape."""
    missing = [name for name in wanted if name not in tensors]
    extra = [name for name in tensors if name not in wanted]
    if missing:
        raise UserError(f"{path} lacks tensor {missing[0]} ({len(missing)} missing); {source} asks for it")
    if extra:
        raise UserError(f"{path} has a tensor {extra[0]} ({len(extra)} too many) that {source} does not know")
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise UserError(f"{path}: tensor {name} has shape {tuple(tensors[name].shape)}; {source} says {shape}")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a floating tensor holds neither NaN nor infinity, whatever its width."""
    return bool(torch.isfinite(tensor if tensor.dtype.itemsize > 1 else tensor.float()).all())
