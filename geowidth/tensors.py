"""Files of tensors (safetensors): written aside and renamed, read whole or refused in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from geowidth import files, memory, records
from geowidth.errors import UserError
from geowidth.files import PathLike

if TYPE_CHECKING:
    import torch


def write_tensors(path: PathLike, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file aside, then rename it into place. metadata: dict of strings."""
    from safetensors.torch import save

    records.write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, metadata))


def read_tensors(path: PathLike) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
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
