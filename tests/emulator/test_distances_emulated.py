"""The CUDA distance kernels and the glue around them, run on the CPU, against extended precision."""

import math

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, cloud

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS, reference_distances
from geowidth.ops import _distances_cuda, distances

pytestmark = pytest.mark.usefixtures("cuda_backend")

ALL = tuple(GEOMETRIES)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = [(1, 1, 1), (2, 3, 1), (7, 31, 3), (64, 128, 16), (67, 13, 29), (68, 132, 24), (97, 71, 37)]
H200, SLOW_FLOAT64 = (9, 0), (8, 9)


def emulate(x, y=None, names=ALL, radius=HYPERBOLIC_RADIUS):
    """{name: matrix} by the op's backend for GPUs."""
    x, y = distances._checked_inputs(x, y)
    return dict(zip(names, distances._run(x, y, list(names), radius, "cuda", 1), strict=True))


@pytest.fixture
def on_chip(monkeypatch):
    """Call it with a compute capability: that is the chip from then on."""
    return lambda capability: monkeypatch.setattr(_distances_cuda, "capability", lambda x: capability)


@pytest.fixture
def grams(monkeypatch):
    """The (dtype, shape) of every panel of a Gram matrix that is formed."""
    formed, form = [], _distances_cuda._gram
    monkeypatch.setattr(
        _distances_cuda, "_gram", lambda x, y, plan: formed.append((plan.gram, (len(x), len(y)))) or form(x, y, plan)
    )
    return formed


def tolerance(dtype, gram):
    """What the op promises, or better: the library's float32 sums are less exact than its float64 ones."""
    return 2e-6 if gram == torch.float32 else 2e-13 if dtype == torch.float64 else 3e-7


# ---------------------------------------------------------------- accuracy


@pytest.mark.parametrize("capability", [H200, SLOW_FLOAT64], ids=["H200", "slow float64"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_at_every_kind_of_shape(generator, on_chip, grams, shape, dtype, capability):
    """Odd sizes write number by number, multiples of four 16 bytes at a time; near pairs stand among the others."""
    on_chip(capability)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capability", [H200, SLOW_FLOAT64], ids=["H200", "slow float64"])
def test_ordinary_clouds_take_the_fast_products_and_far_ones_float64(generator, on_chip, grams, dtype, capability):
    on_chip(capability)
    fast = torch.float32 if dtype.itemsize == 2 or (dtype, capability) == (torch.float32, SLOW_FLOAT64) else torch.float64
    for offset, expected in ((0, fast), (3, torch.float64)):
        x = cloud(generator, 37, 601, dtype, offset)
        for name, matrix in emulate(x).items():
            assert_accurate(matrix, x.double(), x.double(), name, tolerance(dtype, expected))
        assert {gram for gram, _ in grams} == {expected}
        grams.clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_near_duplicates_parallel_and_opposite_rows_among_fast_products(generator, on_chip, grams, dtype):
    on_chip(SLOW_FLOAT64)
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
def test_numbers_whose_squares_leave_float32(generator, grams, dtype, scale):
    x = (scale * torch.randn(17, 64, generator=generator, dtype=torch.float64)).to(dtype)
    for name, matrix in emulate(x).items():
        truth = reference_distances(x, geometry=name)
        torch.testing.assert_close(matrix.double(), truth, rtol=3e-7, atol=0)
    assert grams[0][0] == torch.float64


def test_cut_off_sums_stay_within_what_near_pairs_are_chosen_by():
    """A model of Hopper's tensor cores on the worst profile: one slice of products that first climb to their largest
    sum and then come down to the cosine at which pairs begin to be refined."""
    rng = np.random.default_rng(5)
    pairs, columns, cosine = 64, 1024, 0.25
    share = (1 + cosine) / 2 * columns  # sums of all positive and of all negative products, |x||y| = columns
    positive = int(columns * share / columns)
    products = rng.uniform(0.5, 1.5, (pairs, columns))
    products[:, :positive] *= share / products[:, :positive].sum(1, keepdims=True)
    products[:, positive:] *= -(columns - share) / products[:, positive:].sum(1, keepdims=True)
    products = np.ldexp(np.round(np.ldexp(products, 15)), -15)  # as many bits as products of bfloat16 have
    error = (hopper(products) - products.sum(1)) / columns
    assert 1e-7 < np.abs(error).max() <= 2.1e-5 * (1 + cosine) / 2
    assert np.abs(error).max() / (2 * (1 - cosine)) < 1e-5  # of a distance, relative
    angle = math.acos(cosine)
    assert np.abs(error).max() / (angle * math.sin(angle)) < 1e-5


def hopper(products, width=16, extra=2):
    """Sums of float32 accumulators that take `width` products a step, cut off `extra` bits under float32's last."""
    total = np.zeros(len(products))
    for k in range(0, products.shape[1], width):
        terms = np.concatenate([total[:, None], products[:, k : k + width]], 1)
        exponent = np.frexp(np.abs(terms).max(1))[1]
        unit = np.ldexp(1.0, exponent - 24 - extra)[:, None]
        total = (np.trunc(terms / unit) * unit).sum(1)
        unit = np.ldexp(1.0, np.frexp(total)[1] - 24)
        total = np.trunc(total / unit) * unit
    return total


# ---------------------------------------------------------------- cases that others got wrong


def test_cancellation_of_offsets(on_chip):
    for capability in (H200, SLOW_FLOAT64):
        on_chip(capability)
        assert emulate(torch.tensor([[700001.0]]), torch.tensor([[700100.0]]), ["raw"])["raw"].item() == 99.0
        found = emulate(torch.ones(1, 1000), torch.full((1, 1000), 1.001), ["raw"])["raw"].item()
        assert found == pytest.approx(0.0316242543, rel=1e-6)


def test_tensor_float_32_is_never_used(generator, on_chip, grams):
    on_chip(SLOW_FLOAT64)
    x = torch.randn(64, 300, generator=generator)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed, gram in ((False, torch.float32), (True, torch.float64)):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            for name, matrix in emulate(x).items():
                assert_accurate(matrix, x, x, name, tolerance(torch.float32, gram))
            assert grams[-1][0] == gram
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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


# ---------------------------------------------------------------- panels, alignment, order, gradients


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_panels_and_slices_change_nothing(generator, monkeypatch, grams, dtype, symmetric):
    x, y = cloud(generator, 203, 61, dtype, 0), None if symmetric else cloud(generator, 90, 61, dtype, 0)
    whole = emulate(x, y)
    assert len(grams) == 1
    grams.clear()
    monkeypatch.setattr(_distances_cuda, "PANEL_ROWS", 64)
    monkeypatch.setattr(_distances_cuda, "LEAST_BYTES", 0)
    monkeypatch.setattr(_distances_cuda, "WIDENED_BYTES", 0)
    cut = emulate(x, y)
    assert [shape for _, shape in grams] == [
        (min(64, 203 - row), 203 - row if symmetric else 90) for row in (0, 64, 128, 192)
    ]
    for name in ALL:
        torch.testing.assert_close(cut[name], whole[name], rtol=1e-6 if dtype != torch.float64 else 1e-13, atol=0)


def test_slices_of_the_columns_add_up(generator, monkeypatch):
    x = cloud(generator, 23, 5001, torch.float32, 0)
    monkeypatch.setattr(_distances_cuda, "WIDENED_BYTES", 0)  # 256 columns at a time
    for name, matrix in emulate(x).items():
        assert_accurate(matrix, x, x, name, 3e-7)


def test_one_geometry_alone_has_the_bits_it_has_among_three(generator):
    for dtype in DTYPES:
        x = cloud(generator, 41, 33, dtype)
        everything = emulate(x)
        for name in ALL:
            assert torch.equal(emulate(x, None, [name])[name], everything[name])
        pair = emulate(x, None, ["hyperbolic", "raw"])
        assert all(torch.equal(pair[name], everything[name]) for name in pair)


def test_the_order_of_threads_changes_no_bit(generator, emulated_cuda):
    x = cloud(generator, 71, 40, torch.float32)
    first = emulate(x)
    for seed in (1, 2):
        emulated_cuda.emulator.set_seed(seed)
        assert all(torch.equal(again, first[name]) for name, again in emulate(x).items())


def test_rows_at_addresses_that_are_not_aligned(generator):
    """Columns that are no multiple of 16 bytes, and a first row that does not begin at one."""
    for dtype in DTYPES:
        for d in (7, 8):
            base = cloud(generator, 1, 19 * d + 1, dtype)[0]
            x = base[1:].view(19, d)
            for name, matrix in emulate(x).items():
                assert_accurate(matrix, x.double(), x.double(), name, tolerance(dtype, torch.float32))


def test_more_rows_than_a_survey_has_warps(generator):
    x, y = torch.randn(4096 * 8 + 9, 1, generator=generator), torch.zeros(1, 1)
    assert torch.equal(emulate(x, y, ["raw"])["raw"], x.abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_arrive_in_the_dtype_of_the_input(generator, dtype):
    x = torch.randn(9, 5, generator=generator).to(dtype).requires_grad_()
    found = torch.ops.geowidth.pairwise_distances(x, None, "raw,hyperbolic", HYPERBOLIC_RADIUS, "cuda", 1)
    (found[0].sum() + found[1].sum()).backward()
    wide = x.detach().double().requires_grad_()
    sum(distances.pairwise_distances(wide, geometry=g).sum() for g in ("raw", "hyperbolic")).backward()
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


# ---------------------------------------------------------------- which way is taken


def test_the_route_follows_dtype_chip_and_torch():
    def columns(dtype, capability, wide=True, single=True, half=True):
        plan = _distances_cuda.route(dtype, capability, _distances_cuda.Features(wide, single, half))
        return 0 if plan.gram == torch.float64 else plan.columns

    half, bfloat, single, double = DTYPES
    assert [columns(dtype, (9, 0)) for dtype in DTYPES] == [1024, 1024, 0, 0]
    assert [columns(dtype, (8, 0)) for dtype in DTYPES] == [512, 512, 0, 0]
    assert [columns(dtype, (10, 3)) for dtype in DTYPES] == [1024, 1024, 256, 0]
    assert [columns(dtype, (12, 0)) for dtype in DTYPES] == [512, 512, 256, 0]
    assert columns(bfloat, (9, 0), wide=False) == 0  # torch before 2.8
    assert columns(half, (9, 0), half=False) == 0 and columns(bfloat, (9, 0), half=False) == 1024
    assert columns(single, (8, 9), single=False) == 0


def test_features_are_what_torch_says(monkeypatch):
    matmul = torch.backends.cuda.matmul
    assert _distances_cuda.features() == _distances_cuda.Features(
        hasattr(torch.ops.aten.addmm, "dtype_out"), True, True
    )
    before = matmul.allow_tf32, matmul.allow_fp16_accumulation
    try:
        matmul.allow_tf32 = matmul.allow_fp16_accumulation = True
        assert not _distances_cuda.features().exact_float32 and not _distances_cuda.features().exact_float16
    finally:
        matmul.allow_tf32, matmul.allow_fp16_accumulation = before
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert not _distances_cuda.features().exact_float32


@pytest.mark.skipif(not hasattr(torch.ops.aten.addmm, "dtype_out"), reason="torch before 2.8 has no such product")
def test_products_with_a_wide_result_are_called_as_torch_declares_them():
    """The one line that no CPU can run, on tensors without data."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.empty(5, 24, dtype=dtype, device="meta")
        gram = torch.empty(5, 8, device="meta")[:, :7]
        for first in (True, False):
            _distances_cuda._add_wide_product(gram, x, torch.empty(7, 24, dtype=dtype, device="meta"), first)
