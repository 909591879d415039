"""Pairwise distances under three geometries."""

from geowidth.ops.distances.operation import pairwise_distances

__all__ = ["pairwise_distances"]
