"""The topological work statistic: degree-one persistence diagrams and the 2-Wasserstein distance between them.

`persistence_diagram` is an own engine (csrc/cpu/persistence.h), exact in float64; `diagram_distance` an own exact
solver (csrc/cpu/diagram_distance.h). Both release the GIL, so layers can run in threads.
"""

import math

import numpy as np

from geowidth import inputs
from geowidth.errors import UserError, choose, flag, number
from geowidth.ops.backend import native

GROUND_NORMS = ("sup", "euclidean")


def persistence_diagram(distances, threshold=None, *, validate=True):
    """Degree-one Vietoris-Rips persistence diagram, with Z/2 coefficients, of a distance matrix.

    A simplex enters at its longest edge (its diameter). No triangle inequality is needed.

    Args:
        distances: (n, n) numpy array or tensor of any real dtype, read as float64: symmetric, non-negative, zero on the
            diagonal. An infinite entry is an edge that never enters.
        threshold: edges longer than this never enter, and a bar alive there dies at infinity. By default all finite
            edges enter.
        validate: False skips the checks of the entries, for a matrix known to be in order. Entries out of order then
            give a wrong diagram.

    Returns:
        (k, 2) float64 array of bars (birth, death), birth < death, sorted; death may be infinite.

    Raises:
        UserError: a shape, dtype, entry or threshold is not as above; the message names the first such entry.

    Source: as a statistic of FFN layers, Mudarisov, Burtsev and State, arXiv 2608.02064; for the links of edges,
    Koyama, Memoli, Robins and Turner, arXiv 2307.16333 and 2412.07805.
    """
    matrix, limit = square_matrix(distances, "distances"), _checked_threshold(threshold)
    if flag("validate", validate):
        check_distances(matrix, "distances")
    n = matrix.shape[0]
    return _native().degree_one_persistence(matrix.ctypes.data, n, n, limit)


def diagram_distance(a, b, *, order=2, ground="sup"):
    """The 2-Wasserstein distance between two persistence diagrams, exact.

    Bars are matched to bars or to the diagonal; bars that never die only to such bars, by their births.

    Args:
        a, b: (k, 2) and (m, 2) arrays of bars (birth, death), in any order; births finite, deaths finite or infinite,
            birth <= death. Bars of length zero change nothing.
        order: 2, the only order there is.
        ground: "sup" (the distance of two bars is the larger of the differences of births and of deaths) or
            "euclidean".

    Returns:
        float, exactly 0 for diagrams equal up to order; infinite if the numbers of bars that never die differ.

    Raises:
        UserError: an array has another shape, or holds NaN, an infinite birth, or a death before its birth.

    Source: Edelsbrunner and Harer, Computational Topology (2010), VIII.2.
    """
    choose("order", order, (2,))
    choose("ground", ground, GROUND_NORMS)
    finite_a, endless_a = _split_diagram(a, "a")
    finite_b, endless_b = _split_diagram(b, "b")
    if len(endless_a) != len(endless_b):
        return math.inf
    finite = _native().diagram_distance(
        finite_a.ctypes.data, len(finite_a), finite_b.ctypes.data, len(finite_b), ground == "sup"
    )
    return math.hypot(finite, *(endless_a - endless_b))


def square_matrix(distances, name):
    """`distances` (whatever geowidth.inputs takes) as a contiguous (n, n) float64 array; UserError if it is none."""
    array = _double_array(distances, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise UserError(f"{name} has shape {array.shape}; a square matrix (n, n) is needed")
    return array


def check_distances(matrix, name):
    """Raise a UserError that names the first cell of a contiguous (n, n) float64 array that no distance matrix has."""
    n = matrix.shape[0]
    if _native().is_distance_matrix(matrix.ctypes.data, n, n):
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


def _double_array(values, name):
    return np.ascontiguousarray(inputs.array(name, values), dtype=np.float64)


def _checked_threshold(threshold):
    if threshold is None:
        return math.inf
    return number("threshold", threshold, "a number of at least 0, or None for no threshold", lambda v: v >= 0)


def _split_diagram(diagram, name):
    """Finite bars (k, 2), and the sorted births of the endless ones."""
    bars = _double_array(diagram, f"diagram {name}")
    if bars.size == 0:
        bars = bars.reshape(0, 2)
    if bars.ndim != 2 or bars.shape[1] != 2:
        raise UserError(f"diagram {name} has shape {bars.shape}; bars (k, 2) of birth and death are needed")
    wrong = ~(np.isfinite(bars[:, 0]) & (bars[:, 0] <= bars[:, 1]))
    if wrong.any():
        k = int(np.argmax(wrong))
        birth, death = bars[k].tolist()
        raise UserError(
            f"bar {k} of diagram {name} is ({birth}, {death}); a finite birth and a death not before it are needed"
        )
    endless = np.isinf(bars[:, 1])
    return np.ascontiguousarray(bars[~endless]), np.sort(bars[endless, 0])


def _native():
    module, reason = native()
    if module is None:
        raise UserError(reason)
    return module
