"""Stages of a slicing kept aside until it is whole: a stop at any moment loses the stage that was under way at most.

The folder stands beside the result, NAME.unfinished, is held by one process at a time, and states what was asked for: a
command that asks for something else is refused. Each stage is one file, written aside and renamed.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from geowidth import files, records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.tensors import read_tensors, write_tensors

KIND, SCHEMA = "geowidth.slicing", 1
SETTINGS_FILE = "settings.json"
ENDS = 1 << 20  # bytes at either end of a file that tell it from another


class Stages:
    """The stages in `folder`. watch: called with the name of every stage once it is on the disk."""

    def __init__(self, folder: Path, watch: Callable[[str], object] | None = None) -> None:
        self.folder, self.watch = folder, watch

    def path(self, name: str) -> Path:
        """Where a stage, or a folder of one, lies."""
        return self.folder / name

    def json(self, name: str, make: Callable[[], Any]) -> Any:
        """The JSON value of stage `name`: kept, or made now and kept."""
        path = self.path(f"{name}.json")
        if not path.is_file():
            value = make()
            records.write_json(path, value)
            self.done(name)
        return records.read_json(path)

    def tensors(self, name: str, make: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The tensors of stage `name`: kept, or made now and kept."""
        path = self.path(f"{name}.safetensors")
        if not path.is_file():
            write_tensors(path, make())
            self.done(name)
        return read_tensors(path)[0]

    def done(self, name: str) -> None:
        """Say that stage `name` is on the disk."""
        if self.watch is not None:
            self.watch(name)


def folder_of(out: PathLike) -> Path:
    """Where the stages of the result `out` are kept."""
    out = Path(out)
    return out.with_name(f"{out.name}.unfinished")


@contextlib.contextmanager
def stages_of(
    out: PathLike, settings: dict[str, Any], watch: Callable[[str], object] | None = None
) -> Iterator[Stages]:
    """The Stages of the result `out`, begun now or gone on with; settings: what decides the result.

    Raises UserError for a folder begun with other settings, or held by another process. A block that ends well removes
    the folder; one that is stopped leaves it; a UserError takes away what this call began: another command is needed.
    """
    folder = folder_of(out)
    fresh = not folder.exists()
    record = {"kind": KIND, "schema": SCHEMA, "settings": settings}
    records.claim_folder(folder / SETTINGS_FILE, record, "a slicing that is not finished,")
    with files.holding(folder) as free:
        if not free:
            raise UserError(f"another process is slicing into {out}; wait for it, or name another folder")
        try:
            yield Stages(folder, watch)
        except UserError:
            if fresh:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def begun_with(out: PathLike, name: str) -> Any:
    """The setting `name` of the slicing into `out` that is not finished; None where there is none."""
    path = folder_of(out) / SETTINGS_FILE
    settings = records.read_json(path, KIND, SCHEMA).get("settings") if path.is_file() else None
    return settings.get(name) if isinstance(settings, dict) else None


def fingerprint(folder: Path) -> str:
    """A digest of the weights and configs in a model folder: names, sizes, and the bytes at both ends of every file."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".json", ".safetensors") and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with open(path, "rb") as file:
                digest.update(file.read(ENDS))
                file.seek(max(0, size - ENDS))
                digest.update(file.read(ENDS))
    return digest.hexdigest()
