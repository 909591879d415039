"""Distances by Triton kernels around a float64 Gram matrix; also in Triton's interpreter, on CPU tensors."""

from geowidth.geometry import chord_scale
from geowidth.ops import cuda_support, triton_support
from geowidth.ops.distances.torch import NEAR


def run(x, y, names, radius, threads):
    """List of (n, m) distance matrices in the dtype of `x`, float32 or float64, one for each name.

    The Gram matrix is torch's, in float64: the TF32 switch does not touch it.
    """
    from geowidth.kernels import distances

    del threads
    x, y = x.detach().contiguous(), None if y is None else y.detach().contiguous()
    wide_x = x.double()
    wide_y = wide_x if y is None else y.double()
    outputs = {name: x.new_empty(len(wide_x), len(wide_y)) for name in names}
    if 0 not in (len(wide_x), len(wide_y)):
        with cuda_support.on_device(x):
            distances.run(
                wide_x @ wide_y.T,
                x,
                x if y is None else y,
                (wide_x * wide_x).sum(1),
                (wide_y * wide_y).sum(1),
                wide_x.new_full((1,), chord_scale(radius)),
                outputs,
                near=NEAR[x.dtype],
                symmetric=y is None,
                processors=triton_support.processors(x),
            )
    return list(outputs.values())
