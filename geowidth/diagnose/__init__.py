"""Diagnoses: experiments that test what the allocation takes for granted.

calibration   loss-versus-width curves of every layer: does w^(-a) fit, and does measured work predict c?
"""

from geowidth import lazy

_HOMES = {
    "Calibration": "geowidth.artifacts.calibration",
    "calibrate": "geowidth.diagnose.calibration",
    "fit_curves": "geowidth.diagnose.curves",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
