"""Geometry: widths from measured work, by the exact optimum of the calibrated surrogate.

Source: Mudarisov, Burtsev, State (arXiv 2608.02064); the calibration is that of `geowidth.allocate.surrogate`.
"""

from pathlib import Path

import numpy as np

from geowidth import records
from geowidth.allocate.schedules import Optimum, Rule
from geowidth.allocate.schedules.calibrated import read_calibration, undetermined_notes
from geowidth.allocate.surrogate import calibrated_surrogate, exponents, smooth
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, flag
from geowidth.signals import read_signal


def signal(work, name):
    """The signal called "statistic/geometry" of a work profile, float64 (layers,), finite and not negative."""
    statistic, geometry = read_signal(name, work.work)
    return per_layer(f"work {statistic}/{geometry}", work.signal(statistic, geometry), len(work.widths))


def mix(work, mixture):
    """Weighted mean of signals, each divided by its mean over the layers first, so that no unit outweighs another."""
    if not isinstance(mixture, dict) or not mixture:
        raise UserError(f"mixture is {mixture!r}; give signals with weights, as in {{'topology/hyperbolic': 2}}")
    total = np.zeros(len(work.widths))
    weights = {name: per_layer(f"weight of {name}", weight, 1)[0] for name, weight in mixture.items()}
    for name, weight in weights.items():
        values = signal(work, name)
        total += weight * values / (values.mean() or 1.0)
    if not 0 < sum(weights.values()) < np.inf:
        raise UserError("the weights of the mixture are all 0 or add up beyond float64; give at least one above 0")
    return total / sum(weights.values())


def read_sensitivity(sensitivity):
    """A list of sensitivities, from itself or from a JSON file."""
    if not isinstance(sensitivity, str | Path):
        return sensitivity
    value = records.read_json(sensitivity)
    found = value.get("sensitivity") if isinstance(value, dict) else value
    if not isinstance(found, list):
        raise UserError(f"{sensitivity} holds no list of sensitivities, alone or as 'sensitivity'; give one a layer")
    return found


def geometry(
    problem,
    *,
    geometry="hyperbolic",
    statistic="topology",
    mixture=None,
    exponent="dimension",
    dimension="twonn_mle",
    smoothness=1.0,
    smoothing=True,
    sensitivity=None,
    calibration=None,
):
    """The optimum of the surrogate whose difficulty is the measured work, smoothed over depth, times a sensitivity.

    mixture: {"statistic/geometry": weight} in place of the one signal. sensitivity: one positive number a layer (how
    much the loss reacts to a layer), or the path of a JSON file that holds such a list, alone or as "sensitivity"; 1
    for all when not measured. exponent: "dimension" (2 smoothness / intrinsic dimension by the estimator `dimension`),
    "fitted" (those in the calibration.json at `calibration`), a number, or one a layer.
    """
    work = problem.work
    raw = mix(work, mixture) if mixture is not None else signal(work, f"{statistic}/{geometry}")
    smoothing = flag("smoothing", smoothing)
    difficulty = smooth(raw) if smoothing else raw
    if sensitivity is not None:
        difficulty = difficulty * per_layer("sensitivity", read_sensitivity(sensitivity), problem.layers)
    named = exponent if isinstance(exponent, str) else None
    if (named == "fitted") != (calibration is not None):
        raise UserError("exponent 'fitted' and a calibration (path of calibration.json) go together; give both or none")
    if named != "dimension" and (dimension, smoothness) != ("twonn_mle", 1.0):
        raise UserError("dimension and smoothness are for exponent 'dimension'; another one came: leave them out")
    notes = []
    if calibration is not None:
        found = read_calibration(calibration, problem.layers)
        exponent, notes = found.exponents, undetermined_notes(found)
    table = work.dimension
    if named == "dimension" and dimension not in table:
        raise UserError(f"dimension is {dimension!r}; the work profile has: {', '.join(table) or 'none'}")
    rate = exponents(exponent, problem.layers, table.get(dimension), smoothness)
    if not difficulty.any():
        notes.append("no layer does any work: all widths are equally good, so they are uniform")
    details = {"work": raw, "difficulty": difficulty, "exponents": rate, **({"notes": notes} if notes else {})}
    return Optimum(calibrated_surrogate(difficulty, work.widths, rate), details)


RULE = Rule("geometry", "the optimum for measured work (nine signals or a mixture)", geometry, needs_work=True)
