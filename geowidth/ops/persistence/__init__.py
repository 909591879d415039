"""Degree-one persistence diagrams and their distance."""

from geowidth.ops.persistence.operation import DiagramMatching, diagram_distance, diagram_matching, persistence_diagram

__all__ = ["DiagramMatching", "diagram_distance", "diagram_matching", "persistence_diagram"]
