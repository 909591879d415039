"""The compiled engine of degree-one persistence (csrc/cpu/persistence.h)."""

from geowidth.ops.backend import native


def persistence_native(matrix, threshold):
    """Bars (k, 2) of a contiguous (n, n) float64 numpy array, edges longer than `threshold` left out."""
    return native()[0].degree_one_persistence(matrix, threshold)
