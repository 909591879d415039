"""The call of the compiled CPU distance kernel: contiguous rows, addresses and sizes, nothing checked here."""

from geowidth.geometry import BUILT_IN, chord_scale
from geowidth.ops import backend
from geowidth.ops.distances.torch import NEAR


def run(x, y, names, radius, threads):
    """List of (n, m) matrices by geowidth._native, in the dtype of `x`, float32 or float64."""
    x, y = x.detach().contiguous(), None if y is None else y.detach().contiguous()
    other = x if y is None else y
    matrices = [x.new_empty(len(x), len(other)) for _ in names]
    out = [matrices[names.index(g)].data_ptr() if g in names else 0 for g in BUILT_IN]
    dtype = str(x.dtype).removeprefix("torch.")
    getattr(backend.native()[0], f"distances_{dtype}")(
        x=x.data_ptr(),
        n=len(x),
        y=other.data_ptr(),
        m=len(other),
        depth=x.shape[1],
        out=out,
        stride=len(other),
        mirror=out if y is None else [0, 0, 0],
        mirror_stride=len(other),
        scale=chord_scale(radius),
        near=NEAR[x.dtype],
        symmetric=y is None,
        threads=threads,
    )
    return matrices
