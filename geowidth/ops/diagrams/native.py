"""The compiled matching of two diagrams (csrc/cpu/diagram_distance.h)."""

import numpy as np

from geowidth.ops.backend import native


def match_native(a, b, ground):
    """(distance, partner) of finite bars (k, 2), (m, 2), contiguous float64: partner (k,) int64 in b, -1 for none."""
    partner = np.empty(len(a), dtype=np.int64)
    distance = native()[0].diagram_distance(
        a.ctypes.data, len(a), b.ctypes.data, len(b), ground == "sup", partner.ctypes.data
    )
    return distance, partner
