"""One threshold over all layers: the neurons with the largest normalised scores stay, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from geowidth.allocate.curves import Curves
from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import Optimum
from geowidth.errors import choose
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.selection import standardised


def _divided(by: Callable[[np.ndarray], float]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Scores of every layer divided by one number of them; as they are where that is 0."""
    return lambda scores: [layer / (by(layer) or 1.0) for layer in scores]


# name: what makes the scores of layers comparable. "standard" is FLAP's (arXiv 2312.11983)
NORMALISATIONS: dict[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = {
    "norm": _divided(lambda layer: float(np.linalg.norm(layer))),
    "mean": _divided(lambda layer: float(np.abs(layer).mean())),
    "standard": standardised,
    "none": list,
}


def by_threshold(evidence: Evidence, problem: Problem, *, normalised: str = "norm") -> Optimum:
    """The widths at which the largest normalised scores of all layers stay.

    normalised: scores of a layer divided by their "norm" or their "mean" size, "standard" (less their mean, divided by
    their standard deviation, as FLAP has it), or "none". Under multiples the sum of what stays is the largest.
    """
    choose("normalised", normalised, NORMALISATIONS)
    scores = [np.sort(layer)[::-1] for layer in NORMALISATIONS[normalised](evidence.neuron_scores())]
    # Scores may be negative, gains may not. How many neurons stay is given, so that one number off all changes nothing.
    least = min(float(layer[-1]) for layer in scores)
    return Optimum(Curves([layer - least for layer in scores]))
