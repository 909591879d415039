"""Diagnoses: experiments that test what the allocation takes for granted.

calibration   loss-versus-width curves of every layer: does w^(-a) fit, and does measured work predict c?
"""

from importlib import import_module

_HOME = {"Calibration": "calibration", "calibrate": "calibration", "fit_curves": "curves"}


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"geowidth.diagnose.{_HOME[name]}"), name)
    raise AttributeError(f"module 'geowidth.diagnose' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
