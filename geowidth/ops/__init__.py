"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.activation.operation import activate
from geowidth.ops.distances.operation import pairwise_distances
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.feed_forward.operation import ffn
from geowidth.ops.gromov.operation import gromov_wasserstein
from geowidth.ops.linear_assignment.operation import assignment
from geowidth.ops.transport.operation import sinkhorn

__all__ = [
    "activate",
    "assignment",
    "entropic_gromov_wasserstein",
    "ffn",
    "gromov_wasserstein",
    "pairwise_distances",
    "sinkhorn",
]
