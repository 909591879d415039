"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.distances import pairwise_distances
from geowidth.ops.gromov import gromov_wasserstein

__all__ = ["gromov_wasserstein", "pairwise_distances"]
