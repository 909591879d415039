"""Model folders written whole or not at all: filled aside, then renamed into place."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from geowidth import files, records
from geowidth.errors import UserError
from geowidth.files import PathLike

Result = TypeVar("Result")


def check_free(out: PathLike) -> None:
    """Raise a UserError now if a model could not be written to the folder `out` later."""
    out = Path(out)
    if not out.name or out.resolve() == Path.cwd():
        raise UserError(f"cannot export to {out}, the folder you are in or a root; name a new folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; name a new folder, or remove it first")
    records.check_writable(out / "config.json")
    files.sweep(out)


def aside_of(out: PathLike) -> Path:
    """Where the folder `out` is filled before it is renamed."""
    return Path(out).with_name(f".{Path(out).name}.{os.getpid()}.tmp")


def written_whole(out: PathLike, write: Callable[[Path], Result]) -> Result:
    """Let `write(folder)` fill an empty folder, which then becomes `out`; returns what it returned.

    Where it raises, nothing is left behind.
    """
    check_free(out)
    out, aside = Path(out), aside_of(out)
    made = [folder for folder in out.parents if not folder.exists()]
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        with files.holding(aside):
            result = write(aside)
        if out.is_dir():
            out.rmdir()
        os.replace(aside, out)
    except OSError as error:
        raise files.refusal(out, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        for folder in () if out.exists() else made:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return result
