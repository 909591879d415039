"""The measuring ops on .npy files: the commands `geowidth distances`, `geowidth gromov` and `geowidth topology`."""

from geowidth.arrays.npy import check_npy_output as check_array_output
from geowidth.arrays.npy import read_npy
from geowidth.arrays.npy import write_npy as save_array
from geowidth.errors import UserError

__all__ = ["check_array_output", "load_array", "save_array"]


def load_array(path, axes=2):
    """The numeric array of a .npy file with `axes` axes; nothing is ever unpickled. UserError for anything else."""
    array = read_npy(path)
    if array.ndim != axes or array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype} of shape {array.shape}; allowed: {axes} axes of real numbers")
    return array
