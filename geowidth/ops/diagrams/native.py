"""The compiled matching of two diagrams (csrc/cpu/diagram_distance.h)."""

from geowidth.ops.backend import native


def match_native(a, b, ground):
    """(distance, partner) of finite bars (k, 2), (m, 2), contiguous float64: partner (k,) int64 in b, -1 for none."""
    return native()[0].diagram_distance(a, b, ground == "sup")
