"""Files of tensors (safetensors): written aside and renamed, read whole or refused in one line."""

import os

from geowidth import files, memory, records
from geowidth.errors import UserError


def write_tensors(path, tensors, metadata=None):
    """Write a safetensors file aside, then rename it into place. metadata: dict of strings."""
    from safetensors.torch import save

    records.write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, metadata))


def read_tensors(path):
    """(tensors by name, metadata dict) of a safetensors file; a missing or damaged one raises UserError."""
    from safetensors import SafetensorError, safe_open

    if not files.exists(path):
        raise UserError(f"{path} does not exist")
    memory.check(f"reading {path}", os.path.getsize(path), "use a smaller model")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        words = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is not a whole safetensors file ({words}); use another copy of it") from error
