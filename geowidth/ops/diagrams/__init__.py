"""The distance of two persistence diagrams, and the matching behind it."""

from geowidth.ops.diagrams.operation import DiagramMatching, diagram_distance, diagram_matching
from geowidth.ops.diagrams.reference import diagram_distance_reference

__all__ = ["DiagramMatching", "diagram_distance", "diagram_distance_reference", "diagram_matching"]
