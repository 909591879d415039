"""The 2-Wasserstein distance of two persistence diagrams, exact (csrc/cpu/diagram_distance.h), and its matching.

The GIL is released meanwhile, so layers can run in threads.
"""

import math
from dataclasses import dataclass

import numpy as np

from geowidth.errors import UserError, choose
from geowidth.inputs import ArrayLike
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.diagrams.native import match_native
from geowidth.ops.diagrams.reference import diagram_distance_reference, match_scipy
from geowidth.ops.matrices import double_array

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


def diagram_distance(
    a: ArrayLike, b: ArrayLike, *, order: int = 2, ground: str = "sup", backend: str | None = None
) -> float:
    """The 2-Wasserstein distance between two persistence diagrams, exact.

    Bars are matched to bars or to the diagonal; bars that never die only to such bars, by their births.

    Args:
        a, b: (k, 2) and (m, 2) arrays of bars (birth, death), in any order; births finite, deaths finite or infinite,
            birth <= death. Bars of length zero change nothing.
        order: 2, the only order there is.
        ground: "sup" (the distance of two bars is the larger of the differences of births and of deaths) or
            "euclidean".
        backend: "native" or "scipy"; None: the first that can, or what GEOWIDTH_BACKEND says.

    Returns:
        float, exactly 0 for diagrams equal up to order; infinite if the numbers of bars that never die differ.
        `diagram_matching` also says which bars are matched.

    Raises:
        UserError: an array has another shape, or holds NaN, an infinite birth, or a death before its birth; or the
            distance of two diagrams of finite bars is more than float64 holds.

    Source: Edelsbrunner and Harer, Computational Topology (2010), VIII.2.
    """
    choose("order", order, (2,))
    return diagram_matching(a, b, ground=ground, backend=backend).distance


def diagram_matching(a: ArrayLike, b: ArrayLike, *, ground: str = "sup", backend: str | None = None) -> DiagramMatching:
    """The matching of two persistence diagrams behind their 2-Wasserstein distance: a DiagramMatching.

    Arguments, errors and source as of `diagram_distance`. Where the numbers of bars that never die differ, all of those
    stay unmatched.
    """
    choose("ground", ground, GROUND_NORMS)
    match = DIAGRAM_DISTANCE.choose("cpu", backend).run
    bars_a, bars_b = _diagram(a, "a"), _diagram(b, "b")
    partner = np.full(len(bars_a), -1)
    finite, partner[np.isfinite(bars_a[:, 1])] = _match_finite(match, bars_a, bars_b, ground)
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


def _match_finite(match, a, b, ground):
    """The distance of the finite bars of two diagrams, and the bar of b that each of a is matched to, or -1."""
    places = np.flatnonzero(np.isfinite(b[:, 1]))
    a, b = (np.ascontiguousarray(bars[np.isfinite(bars[:, 1])]) for bars in (a, b))
    distance, partner = match(a, b, ground)
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


def _diagram(diagram, name):
    """Bars (k, 2), checked."""
    bars = double_array(diagram, f"diagram {name}")
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


DIAGRAM_DISTANCE = Operation(
    "diagram_distance",
    [Backend("native", ("cpu",), match_native, why_not_native), Backend("scipy", ("cpu",), match_scipy)],
    diagram_distance_reference,
)
