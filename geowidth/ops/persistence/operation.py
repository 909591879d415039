"""The topological work statistic: degree-one persistence diagrams and the 2-Wasserstein distance between them.

`persistence_diagram` is an own engine (csrc/cpu/persistence.h), exact in float64; `diagram_distance` an own exact
solver (csrc/cpu/diagram_distance.h). Both release the GIL, so layers can run in threads.
"""

import math
from dataclasses import dataclass

import numpy as np

from geowidth import inputs
from geowidth.errors import UserError, choose, flag, number
from geowidth.inputs import ArrayLike
from geowidth.ops.backend import native

GROUND_NORMS = ("sup", "euclidean")


@dataclass(frozen=True)
class DiagramMatching:
    """An optimal matching of two persistence diagrams.

    distance: their 2-Wasserstein distance, sqrt(sum(lengths^2)). pairs (k, 2) int64: every bar of the first diagram
    with its partner in the second, by index, then the bars of the second that have none; -1 stands for the diagonal.
    lengths (k,): how far the two of a pair lie apart in the ground norm; infinite for a bar that never dies and has no
    partner.
    """

    distance: float
    pairs: np.ndarray
    lengths: np.ndarray


def persistence_diagram(distances: ArrayLike, threshold: float | None = None, *, validate: bool = True) -> np.ndarray:
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


def diagram_distance(a: ArrayLike, b: ArrayLike, *, order: int = 2, ground: str = "sup") -> float:
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
        `diagram_matching` also says which bars are matched.

    Raises:
        UserError: an array has another shape, or holds NaN, an infinite birth, or a death before its birth; or the
            distance of two diagrams of finite bars is more than float64 holds.

    Source: Edelsbrunner and Harer, Computational Topology (2010), VIII.2.
    """
    choose("order", order, (2,))
    return diagram_matching(a, b, ground=ground).distance


def diagram_matching(a: ArrayLike, b: ArrayLike, *, ground: str = "sup") -> DiagramMatching:
    """The matching of two persistence diagrams behind their 2-Wasserstein distance: a DiagramMatching.

    Arguments, errors and source as of `diagram_distance`. Where the numbers of bars that never die differ, all of those
    stay unmatched.
    """
    choose("ground", ground, GROUND_NORMS)
    bars_a, bars_b = _diagram(a, "a"), _diagram(b, "b")
    partner = np.full(len(bars_a), -1)
    finite, partner[np.isfinite(bars_a[:, 1])] = _match_finite(bars_a, bars_b, ground)
    endless = [_endless(bars) for bars in (bars_a, bars_b)]
    if len(endless[0]) == len(endless[1]):
        partner[endless[0]] = endless[1]
    left = np.setdiff1d(np.arange(len(bars_b)), partner)
    first = np.append(np.arange(len(bars_a)), np.full(len(left), -1))
    pairs = np.stack([first, np.append(partner, left)], axis=1)
    lengths = _pair_lengths(bars_a, bars_b, pairs, ground)
    if len(endless[0]) != len(endless[1]):
        return DiagramMatching(math.inf, pairs, lengths)
    distance = math.hypot(finite, *lengths[endless[0]])
    if math.isinf(distance):
        raise UserError("the distance of diagrams a and b is more than float64 holds; divide both by the same number")
    return DiagramMatching(distance, pairs, lengths)


def _match_finite(a, b, ground):
    """The distance of the finite bars of two diagrams, and the bar of b that each of a is matched to, or -1."""
    places = np.flatnonzero(np.isfinite(b[:, 1]))
    a, b = (np.ascontiguousarray(bars[np.isfinite(bars[:, 1])]) for bars in (a, b))
    partner = np.empty(len(a), dtype=np.int64)
    distance = _native().diagram_distance(
        a.ctypes.data, len(a), b.ctypes.data, len(b), ground == "sup", partner.ctypes.data
    )
    return distance, np.append(places, -1)[partner]


def _endless(bars):
    """Indices of the bars that never die, by birth."""
    places = np.flatnonzero(np.isinf(bars[:, 1]))
    return places[np.argsort(bars[places, 0], kind="stable")]


def _pair_lengths(a, b, pairs, ground):
    """How far each pair of bars lies apart; a bar without partner, from the diagonal."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = [bars[:, 1] / 2 - bars[:, 0] / 2 for bars in (a, b)]
        alone = [half if ground == "sup" else half * 2**0.5 for half in halves]
        lengths = np.where(pairs[:, 1] < 0, np.append(alone[0], 0)[pairs[:, 0]], np.append(alone[1], 0)[pairs[:, 1]])
        both = (pairs >= 0).all(1)
        moved = np.abs(a[pairs[both, 0]] - b[pairs[both, 1]])
    moved[np.isnan(moved)] = 0  # two that never die
    lengths[both] = moved.max(1) if ground == "sup" else np.hypot(*moved.T)
    return lengths


def square_matrix(distances: ArrayLike, name: str) -> np.ndarray:
    """`distances` (whatever geowidth.inputs takes) as a contiguous (n, n) float64 array; UserError if it is none."""
    array = _double_array(distances, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise UserError(f"{name} has shape {array.shape}; a square matrix (n, n) is needed")
    return array


def check_distances(matrix: np.ndarray, name: str) -> None:
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


def _diagram(diagram, name):
    """Bars (k, 2), checked."""
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
    return bars


def _native():
    module, reason = native()
    if module is None:
        raise UserError(reason)
    return module
