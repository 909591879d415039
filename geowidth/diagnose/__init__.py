"""Diagnoses: experiments that test what the allocation takes for granted.

calibration   loss-versus-width curves of every layer: does w^(-a) fit, and does measured work predict c?
"""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.artifacts.calibration import Calibration as Calibration
    from geowidth.diagnose.calibration import calibrate as calibrate
    from geowidth.diagnose.curves import fit_curves as fit_curves

_HOMES = {
    "Calibration": "geowidth.artifacts.calibration",
    "calibrate": "geowidth.diagnose.calibration",
    "fit_curves": "geowidth.diagnose.curves",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
