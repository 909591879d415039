"""The measuring ops on .npy files: the commands `geowidth distances`, `geowidth gromov` and `geowidth topology`."""

import os
from pathlib import Path

import numpy as np

from geowidth import records
from geowidth.errors import UserError


def load_array(path, axes=2):
    """The numeric array of a .npy file with `axes` axes; nothing is ever unpickled. UserError for anything else."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a .npy file of numbers ({error}); write one with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path} is an archive of several arrays; give one array (.npy)")
    if array.ndim != axes or array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype} of shape {array.shape}; allowed: {axes} axes of real numbers")
    return array


def check_array_output(path):
    """Raise now if a .npy could not be written to `path` later."""
    records.check_writable(path)
    if Path(path).suffix != ".npy":
        raise UserError(f"--out is {path}; name a .npy file")


def save_array(path, array):
    """Write a .npy aside, then rename it into place."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            np.save(file, array, allow_pickle=False)
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name a folder that can be written") from error
    finally:
        aside.unlink(missing_ok=True)
