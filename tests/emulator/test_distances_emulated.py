"""The CUDA distance kernels and the glue around them, run on the CPU, against the float64 reference."""

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate

from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS
from geowidth.ops.distances import OPERATION

pytestmark = pytest.mark.usefixtures("cuda_backend")


def emulate(x, y, names=tuple(GEOMETRIES)):
    """{name: (n, m) array} by the op's backend for GPUs."""
    run = next(b.run for b in OPERATION.backends if b.name == "cuda")
    x, y = torch.as_tensor(x), None if y is None else torch.as_tensor(y)
    return dict(zip(names, (t.numpy() for t in run(x, y, list(names), HYPERBOLIC_RADIUS, 1)), strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (7, 31, 3), (67, 13, 29), (31, 37, 101)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_matches_the_reference(rng, dtype, n, m, d, symmetric):
    x, y = (rng.standard_normal((size, d)).astype(dtype) for size in (n, m))
    if n > 6 and d > 1:
        x[2] = x[1]
        x[3] = x[1] * dtype(1.001)
        x[4] = -2 * x[1]
        x[5] = x[1] + dtype(1e-5) * x[6]
    if not symmetric:
        y[0] = x[0]
    tolerance = 3e-7 if dtype is np.float32 else 1e-12
    for name, found in emulate(x, None if symmetric else y).items():
        assert_accurate(found, x, x if symmetric else y, name, tolerance)
        if symmetric:
            assert (found == found.T).all() and (found.diagonal() == 0).all()


def test_a_nan_row_stays_in_its_row_and_column(rng):
    x = rng.standard_normal((37, 11)).astype(np.float32)
    x[5, 3] = np.nan
    for found in emulate(x, None).values():
        rest = np.delete(np.delete(found, 5, 0), 5, 1)
        assert np.isnan(found[5]).all() and np.isnan(found[:, 5]).all() and np.isfinite(rest).all()


def test_one_geometry_alone_and_empty_shapes(rng):
    x = rng.standard_normal((13, 5)).astype(np.float32)
    everything = emulate(x, None)
    for name in GEOMETRIES:
        assert (emulate(x, None, (name,))[name] == everything[name]).all()
    empty = np.zeros((0, 5), np.float32)
    assert emulate(empty, x, ("raw",))["raw"].shape == (0, 13)
    assert (emulate(np.zeros((5, 0), np.float32), np.zeros((4, 0), np.float32), ("raw",))["raw"] == 0).all()


def test_more_rows_than_a_grid_has(rng):
    x, y = rng.standard_normal((65535 * 8 + 9, 1)).astype(np.float32), np.zeros((1, 1), np.float32)
    assert (emulate(x, y, ("raw",))["raw"] == np.abs(x)).all()
