"""The tensors of a state in parts: every process writes the rows it holds, and any number of processes reads them.

Written and read by torch.distributed.checkpoint, in its safetensors form (HuggingFaceStorageWriter and -Reader): its
own form keeps a pickled index, and nothing of ours is unpickled. Every file says where in the whole its parts lie, so a
reader takes the rows it is to hold, be they in one file or in several.
"""

import math
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from geowidth.errors import UserError
from geowidth.models.storage import check_names_and_shapes


def write_parts(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write this process's part of `tensors` into `folder`; all processes call this with tensors of the same names.

    tensors: sharded ones, or whole ones that are the same everywhere, of which one process writes. Empty ones are left
    out. Files: shard-00001-model-00001-of-00001.safetensors and so on, one a process that holds anything.
    """
    storage = _storage()
    filled = {name: tensor.detach() for name, tensor in tensors.items() if tensor.numel()}
    storage.save(filled, storage_writer=storage.HuggingFaceStorageWriter(str(folder), save_distributed=True))


def read_parts(path: Path, like: Mapping[str, torch.Tensor], also: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Tensors shaped, sharded and placed as those of `like`, out of the .safetensors files in folder `path`.

    also: names of tensors that are read whole where they are there. Needs no other process. Raises UserError for names,
    shapes and dtypes other than those wanted, and for rows that are in no file. Empty tensors are not looked for.
    """
    storage = _storage()
    found = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in like.items()}
    filled = {name: tensor for name, tensor in found.items() if tensor.numel()}
    try:
        reader = storage.HuggingFaceStorageReader(str(path))
        stored = reader.read_metadata().state_dict_metadata
        more = {n: torch.zeros(tuple(f.size), dtype=f.properties.dtype) for n, f in stored.items() if n in also}
        filled |= more
        _check_stored(path, stored, filled)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            storage.load(filled, storage_reader=reader, no_dist=True)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes torch or safetensors say
        words = " ".join(str(error).split())[:200]
        raise UserError(f"{path} holds no whole tensors ({type(error).__name__}: {words})") from error
    return found | more


def _check_stored(path, stored, wanted):
    own = {name: facts for name, facts in stored.items() if math.prod(facts.size)}
    shapes = {name: torch.empty(tuple(facts.size), device="meta") for name, facts in own.items()}
    check_names_and_shapes(path, shapes, {n: tuple(t.shape) for n, t in wanted.items()}, "the model under training")
    for name, facts in own.items():
        if facts.properties.dtype != wanted[name].dtype:
            raise UserError(f"{path}: tensor {name} is {facts.properties.dtype}; needed: {wanted[name].dtype}")
        held = sum(math.prod(chunk.sizes) for chunk in facts.chunks)
        if held != math.prod(facts.size):
            raise UserError(f"{path} holds {held:,} of the {math.prod(facts.size):,} numbers of tensor {name}")


def _storage():
    """torch.distributed.checkpoint, with its safetensors form."""
    import torch.distributed.checkpoint as storage

    if not hasattr(storage, "HuggingFaceStorageWriter"):
        raise UserError(
            f"torch {torch.__version__} keeps no sharded states in safetensors; install torch 2.9 or newer, or use "
            "--parallel ddp"
        )
    return storage
