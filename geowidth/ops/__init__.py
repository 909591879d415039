"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.activation import activate
from geowidth.ops.distances import pairwise_distances
from geowidth.ops.ffn import ffn
from geowidth.ops.gromov import gromov_wasserstein

__all__ = ["activate", "ffn", "gromov_wasserstein", "pairwise_distances"]
