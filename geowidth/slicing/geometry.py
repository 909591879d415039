"""Widths by geometry: the work of each layer's FFN on the calibration tokens, measured on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import Optimum
from geowidth.allocate.schedules.geometry import geometry as by_work
from geowidth.allocate.solve import solve_surrogate
from geowidth.allocate.surrogate import exponents
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.errors import UserError, choose, flag, shown
from geowidth.geometry import GEOMETRIES
from geowidth.inputs import ArrayLike
from geowidth.signals import read_signal
from geowidth.slicing.evidence import Evidence

TOLERANCE = 0.02  # of all neurons: so many may stand in other layers by another half of the draws
MOST_DRAWS = 8


def by_geometry(
    evidence: Evidence,
    problem: Problem,
    *,
    statistic: str = "topology",
    geometry: str = "spherical",
    mixture: dict[str, float] | None = None,
    exponent: ArrayLike = 1.0,
    dimension: str = "twonn_mle",
    smoothness: float = 1.0,
    smoothing: bool = True,
    tokens: int = 512,
    tolerance: float = TOLERANCE,
    most_draws: int = MOST_DRAWS,
) -> Optimum:
    """The optimum of schedule geometry for the mean work of several draws of `tokens` calibration tokens.

    statistic, geometry, mixture, exponent, dimension, smoothness, smoothing: as in that schedule. Exponent 1 makes
    widths go as the square root of the smoothed work; "dimension" is the paper's 2 smoothness / intrinsic dimension,
    with which they go nearly as the work itself. Two draws are added until the widths that the even and the odd ones
    ask for differ by at most `tolerance` of all neurons, at most `most_draws`.
    """
    if isinstance(exponent, str):
        choose("exponent", exponent, ("dimension",))
    else:
        exponents(exponent, problem.layers)
    own: dict[str, Any] = {"exponent": exponent, "smoothing": flag("smoothing", smoothing)}
    own |= {"mixture": mixture} if mixture is not None else {"statistic": statistic, "geometry": geometry}
    if isinstance(exponent, str):
        own |= {"dimension": dimension, "smoothness": smoothness}
    elif (dimension, smoothness) != ("twonn_mle", 1.0):
        raise UserError("dimension and smoothness are for exponent 'dimension'; another one came: leave them out")

    def optimum(work: WorkProfile) -> Optimum:
        return by_work(replace(problem, work=work), **own)

    found = evidence.work(signals_of(statistic, geometry, mixture), lambda work: ideal(optimum(work)), tokens,
                          tolerance, most_draws)  # fmt: skip
    answer = optimum(found.mean)
    return Optimum(answer.surrogate, {**answer.details, "stability": found.to_json()})


def ideal(found: Optimum) -> np.ndarray:
    """The widths that an Optimum asks for without bounds, as shares (layers,) of all; equal ones without any work."""
    surrogate = found.surrogate
    layers = surrogate.size
    if not surrogate.coefficient.any():  # type: ignore[union-attr]
        return np.full(layers, 1.0 / layers)
    ends = np.full(layers, 1e-9), np.full(layers, np.inf)
    return solve_surrogate(surrogate, np.ones(layers), float(layers), *ends).widths / layers  # type: ignore[arg-type]


def signals_of(statistic: str, geometry: str, mixture: dict[str, float] | None) -> Sequence[tuple[str, str]]:
    """[(statistic, geometry)] that these options read; UserError for a mixture that is none."""
    if mixture is None:
        return [(statistic, geometry)]
    if not isinstance(mixture, dict) or not mixture:
        raise UserError(f"mixture is {shown(mixture)}; give signals with weights, as in {{'topology/hyperbolic': 2}}")
    return [read_signal(name, GEOMETRIES) for name in mixture]
