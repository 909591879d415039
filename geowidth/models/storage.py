"""Models on disk: model.json (the ModelConfig) and model.safetensors (the parameters) in one folder.

Every tensor is checked against the config before it is used. A file with missing, extra, mis-shaped or non-finite
tensors, or whose widths are not those of model.json, is refused in one line that names the tensor.
"""

from pathlib import Path

import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.transformer import ModelConfig, TaperedTransformer

KIND, SCHEMA = "geowidth.model", 1
CONFIG_FILE, TENSOR_FILE = "model.json", "model.safetensors"


def save_model(model, folder):
    """Write `model` (a TaperedTransformer) to `folder`; each file is replaced whole or not at all."""
    folder = Path(folder)
    write_tensors(folder / TENSOR_FILE, model.state_dict())
    records.write_json(folder / CONFIG_FILE, {"kind": KIND, "schema": SCHEMA, "config": model.config.to_json()})


def load_model(folder):
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
    model = TaperedTransformer(config, seed=None).to(next(iter(tensors.values())).dtype)
    model.load_state_dict(tensors)
    return model.eval()


def check_tensors(path, tensors, config):
    """Raise a UserError that names the first tensor of `tensors` that does not fit `config` or is not finite."""
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in TaperedTransformer(config, seed=None).named_parameters()}
    missing = [name for name in wanted if name not in tensors]
    extra = [name for name in tensors if name not in wanted]
    if missing:
        raise UserError(f"{path} lacks tensor {missing[0]} ({len(missing)} missing); {CONFIG_FILE} asks for it")
    if extra:
        raise UserError(f"{path} has a tensor {extra[0]} ({len(extra)} too many) that {CONFIG_FILE} does not know")
    dtype = next(iter(tensors.values())).dtype
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise UserError(f"{path}: tensor {name} has shape {tuple(tensor.shape)}; {CONFIG_FILE} says {shape}")
        if tensor.dtype != dtype or not dtype.is_floating_point:
            raise UserError(f"{path}: tensor {name} is {tensor.dtype}; needed: one floating dtype for all tensors")
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: tensor {name} holds NaN or infinity; use another checkpoint")


def write_tensors(path, tensors, metadata=None):
    """Write a safetensors file aside, then rename it into place. metadata: dict of strings."""
    from safetensors.torch import save

    records.write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, metadata))


def read_tensors(path):
    """(tensors by name, metadata dict) of a safetensors file; a missing or damaged one raises UserError."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise UserError(f"{path} does not exist")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error})") from error
