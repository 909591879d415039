"""Checked, differentiable ops with several backends each. ``geowidth doctor`` says which one serves what here."""

from geowidth.ops.activation.operation import activate
from geowidth.ops.diagrams.operation import DiagramMatching, diagram_distance, diagram_matching
from geowidth.ops.dimension.operation import DimensionResult, intrinsic_dimension, merge_duplicates
from geowidth.ops.distances.operation import pairwise_distances
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.feed_forward.operation import ffn
from geowidth.ops.gromov.operation import gromov_wasserstein
from geowidth.ops.linear_assignment.operation import assignment
from geowidth.ops.persistence.operation import persistence_diagram
from geowidth.ops.transport.operation import sinkhorn

__all__ = [
    "DiagramMatching",
    "DimensionResult",
    "activate",
    "assignment",
    "diagram_distance",
    "diagram_matching",
    "entropic_gromov_wasserstein",
    "ffn",
    "gromov_wasserstein",
    "intrinsic_dimension",
    "merge_duplicates",
    "pairwise_distances",
    "persistence_diagram",
    "sinkhorn",
]
