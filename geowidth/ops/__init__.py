"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.distances import pairwise_distances

__all__ = ["pairwise_distances"]
