"""Degree-one persistence diagrams of distance matrices, exact in float64 (csrc/cpu/persistence.h).

The GIL is released meanwhile, so layers can run in threads.
"""

import math

import numpy as np

from geowidth.errors import flag, number
from geowidth.inputs import ArrayLike
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.matrices import check_distances, square_matrix
from geowidth.ops.persistence.native import persistence_native
from geowidth.ops.persistence.reference import persistence_reference


def persistence_diagram(
    distances: ArrayLike, threshold: float | None = None, *, validate: bool = True, backend: str | None = None
) -> np.ndarray:
    """Degree-one Vietoris-Rips persistence diagram, with Z/2 coefficients, of a distance matrix.

    A simplex enters at its longest edge (its diameter). No triangle inequality is needed.

    Args:
        distances: (n, n) numpy array or tensor of any real dtype, read as float64: symmetric, non-negative, zero on the
            diagonal. An infinite entry is an edge that never enters.
        threshold: edges longer than this never enter, and a bar alive there dies at infinity. By default all finite
            edges enter.
        validate: False skips the checks of the entries, for a matrix known to be in order. Entries out of order then
            give a wrong diagram.
        backend: "native", the only one there is; None: that, or what GEOWIDTH_BACKEND says.

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
    return PERSISTENCE.choose("cpu", backend).run(matrix, limit)


def _checked_threshold(threshold):
    if threshold is None:
        return math.inf
    return number("threshold", threshold, "a number of at least 0, or None for no threshold", lambda v: v >= 0)


PERSISTENCE = Operation(
    "persistence", [Backend("native", ("cpu",), persistence_native, why_not_native)], persistence_reference
)
