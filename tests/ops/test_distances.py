"""pairwise_distances: every backend against extended precision, and the cases peers get wrong."""

import math
import re

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, cloud, extended_distances

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES
from geowidth.ops import pairwise_distances
from geowidth.ops.distances import operation as distances
from geowidth.ops.distances.reference import pairwise_distances_reference

TOLERANCE = {torch.float32: 3e-7, torch.float64: 2e-13}
SHAPES = [(1, 1, 1), (2, 3, 1), (7, 5, 3), (29, 31, 37), (197, 61, 31)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy_in_every_dtype(compute, generator, shape, dtype):
    n, m, d = shape
    x, y = cloud(generator, n, d, dtype), cloud(generator, m, d, dtype, offset=0.1)
    y[0] = x[0]
    result = torch.float64 if dtype == torch.float64 else torch.float32
    for other in (y, None):
        found = compute(x, other, geometry="all")
        assert list(found) == list(GEOMETRIES)
        for name, matrix in found.items():
            assert matrix.dtype == result
            wide_x, wide_y = x.double(), (x if other is None else other).double()
            assert_accurate(matrix, wide_x, wide_y, name, TOLERANCE[result])
            if other is None:
                assert torch.equal(matrix, matrix.T) and (matrix.diagonal() == 0).all()


# ---------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("separation", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_near_duplicates(compute, generator, separation, dtype):
    x = torch.randn(40, 67, generator=generator, dtype=torch.float64) + 2
    y = x + separation * torch.randn(40, 67, generator=generator, dtype=torch.float64)
    x, y = x.to(dtype), y.to(dtype)
    for name, found in compute(x, y, geometry="all").items():
        assert_accurate(found, x, y, name, 3e-7 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("ratio", [-1.0, 3.0, -1000.0, 1e-20])
@pytest.mark.parametrize("separation", [1e-2, 1e-4, 1e-6])
def test_nearly_parallel_and_nearly_opposite_rows(compute, generator, separation, ratio):
    x = torch.randn(20, 67, generator=generator, dtype=torch.float64)
    y = ratio * (x + separation * torch.randn(20, 67, generator=generator, dtype=torch.float64))
    x, y = x.float(), y.float()
    for name in ("spherical", "hyperbolic"):
        assert_accurate(compute(x, y, geometry=name), x, y, name, 3e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_massive_dimensions_and_sink_tokens(compute, generator, dtype):
    x = torch.randn(60, 67, generator=generator, dtype=torch.float64)
    x[:, 3] += 1000
    x[0] *= 300
    x[:, 5] -= 70
    x[7] = x[8] + 1e-3 * x[9]
    x = x.to(dtype)
    for name, found in compute(x, geometry="all").items():
        assert_accurate(found, x, x, name, 3e-7 if dtype == torch.float32 else 1e-12)


def test_cancellation_of_offsets(compute):
    assert compute(torch.tensor([[700001.0]]), torch.tensor([[700100.0]])).item() == 99.0
    found = compute(torch.ones(1, 1000), torch.full((1, 1000), 1.001)).item()
    assert found == pytest.approx(0.0316242543, rel=1e-6)


def test_tensor_float_32_changes_nothing(compute, generator):
    z = torch.randn(64, 32, generator=generator) + 10
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            found = compute(z, geometry="all")
            for name, matrix in found.items():
                assert_accurate(matrix, z, z, name, 3e-7)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_angles_at_the_edge_of_their_domain(compute):
    same = torch.tensor([[0.3, 0.3, 0.3]])
    assert compute(same, same.clone(), geometry="spherical").item() == 0
    small = compute(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-4]]), geometry="spherical").item()
    assert small == pytest.approx(9.9999997e-5, rel=1e-6)
    opposite = compute(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[-1.0, -2.0, -3.0]]), geometry="all")
    assert opposite["spherical"].item() == np.float32(math.pi)
    scale = 2 * math.tanh(1) / (1 - math.tanh(1) ** 2)
    assert opposite["hyperbolic"].item() == pytest.approx(2 * math.asinh(scale), rel=1e-6)


@pytest.mark.parametrize("radius", [1e-3, 0.5, 0.99, 0.999999])
def test_every_radius(compute, generator, radius):
    x = cloud(generator, 23, 19)
    assert_accurate(compute(x, geometry="hyperbolic", radius=radius), x, x, "hyperbolic", 4e-7, radius)


def test_float64_squares_neither_overflow_nor_vanish(compute, generator):
    x = torch.randn(11, 7, generator=generator, dtype=torch.float64)
    for factor in (1e250, 1e-250):
        for name, found in compute(factor * x, geometry="all").items():
            unit = compute(x, geometry=name)
            torch.testing.assert_close(found, unit * (factor if name == "raw" else 1), rtol=1e-13, atol=0)
    rows = 10.0 ** torch.linspace(-290, 290, 11, dtype=torch.float64)[:, None]
    mixed = compute(x * rows, geometry="spherical")
    torch.testing.assert_close(mixed, compute(x, geometry="spherical"), rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1e-37, 1e-23, 1e19, 1e30])
def test_float32_squares_neither_overflow_nor_vanish(compute, generator, scale):
    x = scale * torch.randn(23, 31, generator=generator)
    x[3] = 0
    x[4] = x[5]
    torch.testing.assert_close(compute(x).double(), pairwise_distances_reference(x), rtol=3e-7, atol=0)
    x = torch.ones(2, 2)
    x[:, 1] = torch.tensor([0, 1e-23])
    assert compute(x)[0, 1] == x[1, 1]


# ---------------------------------------------------------------- dtypes, shapes, strides


@pytest.mark.parametrize(
    ("a", "b", "dtype", "expected", "result"),
    [
        ([[10, 700]], [[13, 300]], torch.uint16, 400.01124980, torch.float64),
        ([[-128]], [[127]], torch.int8, 255.0, torch.float64),
        ([[2**40]], [[2**40 + 3]], torch.int64, 3.0, torch.float64),
        ([[1, 0]], [[0, 1]], torch.bool, math.sqrt(2), torch.float64),
        ([[300]], [[0]], torch.float16, 300.0, torch.float32),
        ([[1, 256]], [[1, 0]], torch.bfloat16, 256.0, torch.float32),
    ],
    ids=lambda v: str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else None,
)
def test_arithmetic_is_never_done_in_the_storage_type(compute, a, b, dtype, expected, result):
    found = compute(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))
    assert found.dtype == result and found.item() == pytest.approx(expected, rel=1e-9)


def test_empty_and_degenerate_shapes(compute):
    assert compute(torch.zeros(0, 3), torch.ones(5, 3), geometry="all")["hyperbolic"].shape == (0, 5)
    assert torch.equal(compute(torch.zeros(5, 0), torch.zeros(4, 0)), torch.zeros(5, 4))
    assert compute(torch.zeros(0, 0)).shape == (0, 0)
    assert torch.equal(compute(torch.ones(1, 3), geometry="all")["spherical"], torch.zeros(1, 1))
    x = torch.zeros(0, 3, requires_grad=True)
    y = torch.ones(5, 3, requires_grad=True)
    compute(x, y).sum().backward()
    assert x.grad.shape == (0, 3) and (y.grad == 0).all()
    wide = torch.zeros(5, 0, requires_grad=True)
    compute(wide).sum().backward()
    assert wide.grad.shape == (5, 0)


def test_rows_that_are_not_finite_stay_in_their_row_and_column(compute, generator):
    x = torch.randn(211, 7, generator=generator)
    x[5, 3] = float("nan")
    for found in compute(x, geometry="all").values():
        rest = np.delete(np.delete(found.numpy(), 5, 0), 5, 1)
        assert found[5].isnan().all() and found[:, 5].isnan().all() and np.isfinite(rest).all()
    x[5, 3] = float("inf")
    for found in compute(x, geometry="all").values():
        assert np.isfinite(np.delete(np.delete(found.numpy(), 5, 0), 5, 1)).all()
        assert not found[5].isfinite().any() and not found[:, 5].isfinite().any()


def test_any_strides_give_the_bits_of_a_copy(compute, generator):
    base = torch.randn(37, 58, generator=generator)
    for view in (base.T, base[:, ::2], base[::3, 5:50:7], base[:1].expand(9, 58), base.flip(0)[4:]):
        copy = compute(view.clone(), base[:5, : view.shape[1]].clone(), geometry="all")
        found = compute(view, base[:5, : view.shape[1]], geometry="all")
        assert all(torch.equal(found[name], copy[name]) for name in GEOMETRIES)


def test_numpy_arrays_are_taken(rng):
    x = rng.standard_normal((9, 4))
    assert torch.equal(pairwise_distances(x), pairwise_distances(torch.from_numpy(x)))


# ---------------------------------------------------------------- refusals


def test_zero_rows_have_no_direction(compute):
    x = torch.ones(5, 3)
    x[3] = 0
    with pytest.raises(UserError, match="row 3 of x is zero and has no direction"):
        compute(x, geometry="spherical")
    with pytest.raises(UserError, match="row 3 of y is zero and has no direction"):
        compute(torch.ones(2, 3), x, geometry="all")
    assert compute(x)[3, 0] == np.float32(math.sqrt(3))


def test_zero_rows_keep_their_number_when_blocks_are_written(monkeypatch):
    monkeypatch.setattr(distances, "BLOCK", 2)
    x = torch.ones(5, 3)
    x[3] = 0
    with pytest.raises(UserError, match="row 3 of x is zero"):
        pairwise_distances(x, geometry="spherical", out=np.empty((5, 5), np.float32))


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        (torch.ones(3), None, {}, r"x has shape \(3,\); needed: 2 axes"),
        (torch.ones(4, 3), torch.ones(4, 2), {}, r"x is \(4, 3\) and y is \(4, 2\)"),
        (torch.ones(2, 2, dtype=torch.complex64), None, {}, "x is complex64; allowed: float16"),
        (torch.ones(2, 2), torch.ones(2, 2, device="meta"), {}, "y is on the meta device"),
        (torch.ones(2, 2), None, {"geometry": "flat"}, "geometry is 'flat'; allowed: raw, spherical, hyperbolic, all"),
        (torch.ones(2, 2), None, {"geometry": ["raw", "raw"]}, "each once"),
        (torch.ones(2, 2), None, {"geometry": []}, "at least one"),
        (torch.ones(2, 2), None, {"radius": 1.5}, "radius is 1.5"),
        (torch.ones(2, 2), None, {"threads": 0}, "threads is 0"),
        (torch.ones(2, 2), None, {"backend": "cuda"}, "backend of pairwise_distances on cpu is 'cuda'"),
    ],
)
def test_bad_input_is_named(x, y, options, words):
    with pytest.raises(UserError, match=words):
        pairwise_distances(x, y, **options)


def test_cuda_says_why_not_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reasons = dict(distances.OPERATION.report("cuda"))
    assert re.search("CUDA|GPU|not built", reasons["cuda"])
    assert reasons["torch"] is None


def test_oracle_agrees_with_the_plain_reference(generator):
    x = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    for name in GEOMETRIES:
        found = pairwise_distances_reference(x, geometry=name).numpy()
        assert np.abs(found - extended_distances(x, x, name)).max() < 1e-14
