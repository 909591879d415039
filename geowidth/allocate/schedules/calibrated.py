"""Calibrated: the optimum of the surrogate that `geowidth calibrate` fitted to trained models, no work needed."""

import numpy as np

from geowidth.allocate.schedules import Optimum, Rule
from geowidth.allocate.surrogate import calibrated_surrogate
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, flag
from geowidth.files import file_path


def read_calibration(path, layers):
    """The Calibration in a file, for that many layers."""
    from geowidth.artifacts.calibration import Calibration

    found = Calibration.read(file_path("calibration", path))
    if len(found.widths) != layers:
        raise UserError(f"calibration {path} has {len(found.widths)} layers, {layers} are asked for")
    return found


def undetermined_notes(calibration):
    """A note on layers whose fitted exponent is a guess; none where all are determined."""
    layers = " ".join(map(str, calibration.undetermined))
    return [f"the calibration does not determine the exponents of these layers: {layers}"] if layers else []


def calibrated(problem, *, calibration, shared=True):
    """Fitted difficulties and exponents: one exponent for all layers, or with shared=False one a layer.

    calibration: path of calibration.json. Layers whose loss did not fall with their width have no difficulty and get
    the floor, which the notes say.
    """
    shared = flag("shared", shared)
    found = read_calibration(calibration, problem.layers)
    fitted = found.shared["difficulty"] if shared else found.difficulty
    rate = np.full(problem.layers, found.shared["exponent"]) if shared else np.array(found.exponents)
    difficulty = np.maximum(per_layer("fitted difficulty", fitted, problem.layers, -np.finfo(np.float64).max), 0.0)
    idle = np.flatnonzero(difficulty == 0.0).tolist()
    notes = [] if shared else undetermined_notes(found)
    if shared and not found.shared_determined:
        notes.append("the calibration does not determine the exponent that all layers share")
    if idle:
        named = " ".join(map(str, idle))
        notes.append(f"the loss did not fall as these layers became wider: {named}; they get the floor")
    details = {"difficulty": difficulty, "exponents": rate, **({"notes": notes} if notes else {})}
    return Optimum(calibrated_surrogate(difficulty, found.widths, rate), details)


RULE = Rule("calibrated", "the optimum for difficulties and exponents fitted by geowidth calibrate", calibrated)
