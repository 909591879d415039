"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.activation import activate
from geowidth.ops.assignment import assignment
from geowidth.ops.distances import pairwise_distances
from geowidth.ops.entropic_gromov import entropic_gromov_wasserstein
from geowidth.ops.ffn import ffn
from geowidth.ops.gromov import gromov_wasserstein
from geowidth.ops.sinkhorn import sinkhorn

__all__ = [
    "activate",
    "assignment",
    "entropic_gromov_wasserstein",
    "ffn",
    "gromov_wasserstein",
    "pairwise_distances",
    "sinkhorn",
]
