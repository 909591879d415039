"""kernels/cuda/distances.cu, compiled as C++ and run on the CPU, against the float64 reference."""

import ctypes
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate

from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS, chord_scale
from geowidth.ops._distances_torch import NEAR

ROOT = Path(__file__).resolve().parents[2]
GUARD = 64  # elements before and after every output that must stay as they were


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The kernel file as a shared library, with undefined behaviour trapped."""
    target = tmp_path_factory.mktemp("emulator") / "distances.so"
    flags = "-std=c++17 -O1 -g -Wall -Wextra -Werror -shared -fPIC -fsanitize=undefined -fno-sanitize-recover=all"
    includes = [f"-I{ROOT / part}" for part in ("tests/emulator", "csrc", "kernels/cuda")]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    source = ROOT / "tests/emulator/distances.cpp"
    subprocess.run([*compiler, *flags.split(), *includes, str(source), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def emulate(library, x, y, names=tuple(GEOMETRIES)):
    """{name: (n, m) array} by the kernel; outputs start as NaN between guard zones."""
    other = x if y is None else y
    wide_x, wide_y = x.astype(np.float64), other.astype(np.float64)
    gram = np.ascontiguousarray(wide_x @ wide_y.T)
    squares = [(w * w).sum(1) for w in (wide_x, wide_y)]
    whole = {name: np.full(gram.size + 2 * GUARD, np.nan, x.dtype) for name in names}
    for array in whole.values():
        array[:GUARD] = array[-GUARD:] = 7.25
    out = (ctypes.c_void_p * 3)(*[whole[g][GUARD:].ctypes.data if g in whole else None for g in GEOMETRIES])
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (gram, x, other, *squares)]
    sizes = [ctypes.c_int64(s) for s in (len(x), len(other), x.shape[1])]
    numbers = [ctypes.c_double(chord_scale(HYPERBOLIC_RADIUS)), ctypes.c_double(NEAR[torch.from_numpy(x).dtype])]
    status = getattr(library, f"distances_{x.dtype}")(*pointers, *sizes, out, *numbers, int(y is None))
    assert status == 0
    for array in whole.values():
        assert (array[:GUARD] == 7.25).all() and (array[-GUARD:] == 7.25).all()
    return {name: array[GUARD:-GUARD].reshape(gram.shape) for name, array in whole.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (7, 31, 3), (67, 13, 29), (31, 37, 101)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_matches_the_reference(library, rng, dtype, n, m, d, symmetric):
    x, y = (rng.standard_normal((size, d)).astype(dtype) for size in (n, m))
    if n > 6 and d > 1:
        x[2] = x[1]
        x[3] = x[1] * dtype(1.001)
        x[4] = -2 * x[1]
        x[5] = x[1] + dtype(1e-5) * x[6]
    if not symmetric:
        y[0] = x[0]
    tolerance = 3e-7 if dtype is np.float32 else 1e-12
    for name, found in emulate(library, x, None if symmetric else y).items():
        assert_accurate(found, x, x if symmetric else y, name, tolerance)
        if symmetric:
            assert (found == found.T).all() and (found.diagonal() == 0).all()


def test_a_nan_row_stays_in_its_row_and_column(library, rng):
    x = rng.standard_normal((37, 11)).astype(np.float32)
    x[5, 3] = np.nan
    for found in emulate(library, x, None).values():
        rest = np.delete(np.delete(found, 5, 0), 5, 1)
        assert np.isnan(found[5]).all() and np.isnan(found[:, 5]).all() and np.isfinite(rest).all()


def test_one_geometry_alone_and_empty_shapes(library, rng):
    x = rng.standard_normal((13, 5)).astype(np.float32)
    everything = emulate(library, x, None)
    for name in GEOMETRIES:
        assert (emulate(library, x, None, (name,))[name] == everything[name]).all()
    empty = np.zeros((0, 5), np.float32)
    assert emulate(library, empty, x, ("raw",))["raw"].shape == (0, 13)
    assert (emulate(library, np.zeros((5, 0), np.float32), np.zeros((4, 0), np.float32), ("raw",))["raw"] == 0).all()


def test_more_rows_than_a_grid_has(library, rng):
    x, y = rng.standard_normal((65535 * 8 + 9, 1)).astype(np.float32), np.zeros((1, 1), np.float32)
    assert (emulate(library, x, y, ("raw",))["raw"] == np.abs(x)).all()
