"""Pairwise distances written down plainly, in float64: what the op is tested against."""

import torch

from geowidth.geometry import HYPERBOLIC_RADIUS, reference_distances
from geowidth.inputs import ArrayLike


def pairwise_distances_reference(
    x: ArrayLike, y: ArrayLike | None = None, geometry: str = "raw", radius: float = HYPERBOLIC_RADIUS
) -> torch.Tensor:
    """The float64 oracle: `geowidth.geometry.reference_distances`."""
    return reference_distances(x, y, geometry, radius)
