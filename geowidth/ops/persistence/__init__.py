"""Degree-one persistence diagrams."""

from geowidth.ops.persistence.operation import persistence_diagram
from geowidth.ops.persistence.reference import persistence_reference

__all__ = ["persistence_diagram", "persistence_reference"]
