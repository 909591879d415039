"""The measuring ops on .npy files: the commands `geowidth distances`, `geowidth gromov` and `geowidth topology`."""

from geowidth.cli.npy import check_npy_output as check_array_output
from geowidth.cli.npy import read_npy
from geowidth.cli.npy import write_npy as save_array
from geowidth.errors import UserError

__all__ = ["check_array_output", "load_array", "save_array"]


def load_array(path, axes=2):
    """The array of a .npy file with `axes` axes, as geowidth.inputs makes it: float16, float32 or float64 in this
    machine's byte order. Nothing is ever unpickled. UserError for anything else."""
    found = read_npy(path)
    if found.ndim != axes or found.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {found.dtype} of shape {found.shape}; allowed: {axes} axes of real numbers")
    from geowidth import inputs

    return inputs.array(path, found)
