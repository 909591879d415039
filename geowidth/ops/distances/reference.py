"""Pairwise distances written down plainly, in float64: what the op is tested against."""

from geowidth.geometry import HYPERBOLIC_RADIUS, reference_distances


def pairwise_distances_reference(x, y=None, geometry="raw", radius=HYPERBOLIC_RADIUS):
    """The float64 oracle: `geowidth.geometry.reference_distances`."""
    return reference_distances(x, y, geometry, radius)
