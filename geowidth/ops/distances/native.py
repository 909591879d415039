"""The call of the compiled CPU distance kernel: contiguous rows, nothing checked here."""

from geowidth.geometry import BUILT_IN, chord_scale
from geowidth.ops import backend
from geowidth.ops.distances.torch import NEAR


def run(x, y, names, radius, threads):
    """List of (n, m) matrices by geowidth._native, in the dtype of `x`, float32 or float64."""
    x, y = x.detach().contiguous(), None if y is None else y.detach().contiguous()
    other = x if y is None else y
    matrices = [x.new_empty(len(x), len(other)) for _ in names]
    out = [matrices[names.index(g)] if g in names else None for g in BUILT_IN]
    backend.native()[0].distances(
        x=x,
        y=other,
        out=out,
        mirror=out if y is None else [None] * len(out),
        scale=chord_scale(radius),
        near=NEAR[x.dtype],
        symmetric=y is None,
        threads=threads,
    )
    return matrices
