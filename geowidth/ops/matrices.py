"""Checks of distance matrices, for the ops that take one whole."""

import numpy as np

from geowidth import inputs
from geowidth.errors import UserError
from geowidth.inputs import ArrayLike
from geowidth.ops.backend import native


def square_matrix(distances: ArrayLike, name: str) -> np.ndarray:
    """`distances` (whatever geowidth.inputs takes) as a contiguous (n, n) float64 array; UserError if it is none."""
    array = double_array(distances, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise UserError(f"{name} has shape {array.shape}; a square matrix (n, n) is needed")
    return array


def check_distances(matrix: np.ndarray, name: str) -> None:
    """Raise a UserError that names the first cell of a contiguous (n, n) float64 array that no distance matrix has."""
    module = native()[0]
    if module is not None and module.is_distance_matrix(matrix):
        return
    wrong_cells = (
        ("distances are numbers", lambda: matrix != matrix),
        ("the diagonal must be 0", lambda: np.diag(np.diagonal(matrix) != 0)),
        ("distances are not negative", lambda: matrix < 0),
        ("the matrix must be symmetric", lambda: matrix != matrix.T),
    )
    for reason, wrong in wrong_cells:
        cells = np.argwhere(wrong())
        if len(cells):
            i, j = cells[0].tolist()
            mirror = f" but [{j}, {i}] is {matrix[j, i]}" if "symmetric" in reason else ""
            raise UserError(f"{name}[{i}, {j}] is {matrix[i, j]}{mirror}; {reason}")


def double_array(values: ArrayLike, name: str) -> np.ndarray:
    """`values` (whatever geowidth.inputs takes) as a contiguous float64 array."""
    return np.ascontiguousarray(inputs.array(name, values), dtype=np.float64)
