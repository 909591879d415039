"""Measurement of geometric work: persistence diagrams and their distance, intrinsic dimension."""

from importlib import import_module

_EXPORTS = {
    "DimensionResult": "dimension",
    "intrinsic_dimension": "dimension",
    "merge_duplicates": "dimension",
    "diagram_distance": "topology",
    "persistence_diagram": "topology",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name in _EXPORTS:
        return getattr(import_module(f"geowidth.measure.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'geowidth.measure' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_EXPORTS])
