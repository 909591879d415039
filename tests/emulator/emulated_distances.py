"""What the tests of the emulated distance kernels share."""

import torch

from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS
from geowidth.ops.distances import cuda as _distances_cuda
from geowidth.ops.distances import operation as distances

ALL = tuple(GEOMETRIES)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
H200, SLOW_FLOAT64 = (9, 0), (8, 9)


def emulate(x, y=None, names=ALL, radius=HYPERBOLIC_RADIUS):
    """{name: matrix} by the op's backend for GPUs."""
    x, y = distances._checked_inputs(x, y)
    on_gpu = next(b for b in distances.OPERATION.backends if b.name == "cuda")
    return dict(zip(names, distances._run_group(on_gpu, x, y, list(names), radius, 1), strict=True))


def on_chip(monkeypatch, capability):
    """From now on the chip has that compute capability."""
    monkeypatch.setattr(_distances_cuda, "capability", lambda x: capability)


def formed_grams(monkeypatch):
    """A list that gets the (dtype, shape) of every panel of a Gram matrix that is formed."""
    formed, form = [], _distances_cuda._gram

    def gram(x, y, plan):
        formed.append((plan.gram, (len(x), len(y))))
        return form(x, y, plan)

    monkeypatch.setattr(_distances_cuda, "_gram", gram)
    return formed


def tolerance(dtype, gram):
    """What the op promises, or better: the library's float32 sums are less exact than its float64 ones."""
    return 2e-6 if gram == torch.float32 else 2e-13 if dtype == torch.float64 else 3e-7
