"""The CUDA distance kernels and the glue around them, run on the CPU, against extended precision."""

import math

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, cloud
from emulated_distances import DTYPES, H200, SLOW_FLOAT64, emulate, formed_grams, on_chip, tolerance

from geowidth.errors import UserError
from geowidth.geometry import reference_distances

pytestmark = pytest.mark.usefixtures("cuda_backend")

SANITIZED = [pytest.param(shape, marks=pytest.mark.sanitized) for shape in ((7, 31, 3), (67, 13, 29))]
SHAPES = [(1, 1, 1), (2, 3, 1), (64, 128, 16), (68, 132, 24), (97, 71, 37), *SANITIZED]


# ---------------------------------------------------------------- accuracy


@pytest.mark.parametrize("capability", [H200, SLOW_FLOAT64], ids=["H200", "slow float64"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_at_every_kind_of_shape(generator, shape, dtype, capability, monkeypatch):
    """Odd sizes write number by number, multiples of four 16 bytes at a time; near pairs stand among the others."""
    grams = formed_grams(monkeypatch)
    on_chip(monkeypatch, capability)
    n, m, d = shape
    x, y = cloud(generator, n, d, dtype, offset=0), cloud(generator, m, d, dtype, offset=0)
    y[0] = x[0]
    for other in (y, None):
        found = emulate(x, other)
        for name, matrix in found.items():
            assert matrix.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            wide_x, wide_y = x.double(), (x if other is None else other).double()
            assert_accurate(matrix, wide_x, wide_y, name, tolerance(dtype, grams[-1][0]))
            if other is None:
                assert torch.equal(matrix, matrix.T) and (matrix.diagonal() == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_near_duplicates_parallel_and_opposite_rows_among_fast_products(generator, dtype, monkeypatch):
    grams = formed_grams(monkeypatch)
    on_chip(monkeypatch, SLOW_FLOAT64)
    x = torch.randn(61, 257, generator=generator, dtype=torch.float64)
    for row, separation in enumerate((0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)):
        x[2 * row + 1] = (-2.0) ** row * (x[2 * row] + separation * x[50 + row])
    x = x.to(dtype)
    for name, matrix in emulate(x).items():
        assert_accurate(matrix, x.double(), x.double(), name, 2e-6)
    assert grams[0][0] == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_massive_dimensions_and_sink_tokens(generator, dtype):
    x = torch.randn(60, 67, generator=generator, dtype=torch.float64)
    x[:, 3] += 1000
    x[0] *= 300
    x[7] = x[8] + 1e-3 * x[9]
    x = x.to(dtype)
    for name, matrix in emulate(x).items():
        assert_accurate(matrix, x.double(), x.double(), name, 3e-7 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("scale", [1e-37, 1e30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_numbers_whose_squares_leave_float32(generator, dtype, scale, monkeypatch):
    grams = formed_grams(monkeypatch)
    x = (scale * torch.randn(17, 64, generator=generator, dtype=torch.float64)).to(dtype)
    for name, matrix in emulate(x).items():
        truth = reference_distances(x, geometry=name)
        torch.testing.assert_close(matrix.double(), truth, rtol=3e-7, atol=0)
    assert grams[0][0] == torch.float64


# ---------------------------------------------------------------- cases that others got wrong


def test_cancellation_of_offsets(monkeypatch):
    for capability in (H200, SLOW_FLOAT64):
        on_chip(monkeypatch, capability)
        assert emulate(torch.tensor([[700001.0]]), torch.tensor([[700100.0]]), ["raw"])["raw"].item() == 99.0
        found = emulate(torch.ones(1, 1000), torch.full((1, 1000), 1.001), ["raw"])["raw"].item()
        assert found == pytest.approx(0.0316242543, rel=1e-6)


def test_angles_at_the_edge_of_their_domain():
    def angle(a, b, name="spherical"):
        return emulate(torch.tensor([a]), torch.tensor([b]), [name])[name].item()

    assert angle([0.3, 0.3, 0.3], [0.3, 0.3, 0.3]) == 0
    assert angle([1.0, 0.0], [1.0, 1e-4]) == pytest.approx(9.9999997e-5, rel=1e-6)
    assert angle([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]) == np.float32(math.pi)
    scale = 2 * math.tanh(1) / (1 - math.tanh(1) ** 2)
    assert angle([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], "hyperbolic") == pytest.approx(2 * math.asinh(scale), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zero_row_is_named(dtype):
    x = torch.ones(5, 3, dtype=dtype)
    x[3] = 0
    with pytest.raises(UserError, match="row 3 of x is zero and has no direction"):
        emulate(x, None, ["spherical"])
    with pytest.raises(UserError, match="row 3 of y is zero and has no direction"):
        emulate(x[:2], x)
    assert emulate(x, None, ["raw"])["raw"][3, 0] == pytest.approx(math.sqrt(3), rel=1e-7)
    with pytest.raises(UserError, match="row 0 of x is zero"):
        emulate(torch.ones(5, 0, dtype=dtype))


@pytest.mark.parametrize(
    ("a", "b", "dtype", "expected"),
    [
        ([[10, 700]], [[13, 300]], torch.uint16, 400.01124980),
        ([[-128]], [[127]], torch.int8, 255.0),
        ([[2**40]], [[2**40 + 3]], torch.int64, 3.0),
        ([[1, 0]], [[0, 1]], torch.bool, math.sqrt(2)),
        ([[300]], [[0]], torch.float16, 300.0),
        ([[1, 256]], [[1, 0]], torch.bfloat16, 256.0),
    ],
    ids=str,
)
def test_integers_and_halves_neither_wrap_nor_overflow(a, b, dtype, expected):
    found = emulate(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype), ["raw"])["raw"]
    assert found.item() == pytest.approx(expected, rel=1e-9) and found.dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_and_degenerate_shapes(dtype):
    for n, m, d in ((0, 5, 3), (5, 0, 3), (0, 0, 0), (0, 0, 3)):
        assert emulate(torch.ones(n, d, dtype=dtype), torch.ones(m, d, dtype=dtype))["raw"].shape == (n, m)
    assert emulate(torch.ones(0, 3, dtype=dtype))["hyperbolic"].shape == (0, 0)
    nothing = torch.ones(5, 0, dtype=dtype)
    assert torch.equal(emulate(nothing, nothing[:4], ["raw"])["raw"].double(), torch.zeros(5, 4).double())
    assert emulate(torch.ones(1, 3, dtype=dtype))["spherical"].tolist() == [[0.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_that_is_not_finite_stays_in_its_row_and_column(generator, dtype, value):
    x = torch.randn(37, 64, generator=generator).to(dtype)
    x[5, 3] = value
    for found in emulate(x).values():
        rest = np.delete(np.delete(found.numpy(), 5, 0), 5, 1)
        assert not found[5].isfinite().any() and not found[:, 5].isfinite().any() and np.isfinite(rest).all()
