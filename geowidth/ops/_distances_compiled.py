"""Calls of the compiled distance kernels: contiguous rows, addresses and sizes, nothing checked here."""

from geowidth.geometry import GEOMETRIES, chord_scale
from geowidth.ops import backend, cuda_support
from geowidth.ops._distances_torch import NEAR


def run_native(x, y, names, radius, threads):
    """List of (n, m) matrices by geowidth._native, in the dtype of `x`, float32 or float64."""
    x, y, matrices, out = _prepare(x, y, names)
    _function(backend.native()[0], x)(
        x=x.data_ptr(),
        n=x.shape[0],
        y=(x if y is None else y).data_ptr(),
        m=(x if y is None else y).shape[0],
        depth=x.shape[1],
        out=out,
        stride=matrices[0].shape[1],
        mirror=out if y is None else [0, 0, 0],
        mirror_stride=matrices[0].shape[1],
        scale=chord_scale(radius),
        near=NEAR[x.dtype],
        symmetric=y is None,
        threads=threads,
    )
    return matrices


def run_cuda(x, y, names, radius, threads):
    """List of (n, m) matrices by geowidth._cuda on the device of `x`.

    The Gram matrix is torch's, in float64: the TF32 switch does not touch it.
    """
    del threads
    x, y, matrices, out = _prepare(x, y, names)
    wide_x = x.double()
    wide_y = wide_x if y is None else y.double()
    gram, square_x, square_y = wide_x @ wide_y.T, (wide_x * wide_x).sum(1), (wide_y * wide_y).sum(1)
    with cuda_support.on_device(x):
        _function(backend.cuda()[0], x)(
            gram=gram.data_ptr(),
            x=x.data_ptr(),
            y=(x if y is None else y).data_ptr(),
            square_x=square_x.data_ptr(),
            square_y=square_y.data_ptr(),
            n=gram.shape[0],
            m=gram.shape[1],
            depth=x.shape[1],
            out=out,
            scale=chord_scale(radius),
            near=NEAR[x.dtype],
            symmetric=y is None,
            stream=cuda_support.stream(x),
        )
    return matrices


def _prepare(x, y, names):
    """(contiguous x, contiguous y or None, new matrices in the order of `names`, their addresses by geometry or 0)."""
    x, y = x.detach().contiguous(), None if y is None else y.detach().contiguous()
    matrices = [x.new_empty(x.shape[0], (x if y is None else y).shape[0]) for _ in names]
    return x, y, matrices, [matrices[names.index(g)].data_ptr() if g in names else 0 for g in GEOMETRIES]


def _function(module, x):
    return getattr(module, f"distances_{str(x.dtype).removeprefix('torch.')}")
