"""The ways in which a GPU forms the Gram matrix, its panels and slices, and what the kernels' bits depend on: run on
the CPU."""

import math

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, cloud
from emulated_distances import ALL, DTYPES, H200, SLOW_FLOAT64, emulate, formed_grams, on_chip, tolerance

from geowidth.errors import UserError
from geowidth.geometry import HYPERBOLIC_RADIUS
from geowidth.ops.backend import Backend
from geowidth.ops.distances import cuda as _distances_cuda
from geowidth.ops.distances import operation as distances

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("cuda_backend")


# ---------------------------------------------------------------- which way is taken


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capability", [H200, SLOW_FLOAT64], ids=["H200", "slow float64"])
def test_ordinary_clouds_take_the_fast_products_and_far_ones_float64(generator, dtype, capability, monkeypatch):
    grams = formed_grams(monkeypatch)
    on_chip(monkeypatch, capability)
    fast = (
        torch.float32 if dtype.itemsize == 2 or (dtype, capability) == (torch.float32, SLOW_FLOAT64) else torch.float64
    )
    for offset, expected in ((0, fast), (3, torch.float64)):
        x = cloud(generator, 37, 601, dtype, offset)
        for name, matrix in emulate(x).items():
            assert_accurate(matrix, x.double(), x.double(), name, tolerance(dtype, expected))
        assert {gram for gram, _ in grams} == {expected}
        grams.clear()


def test_tensor_float_32_is_never_used(generator, monkeypatch):
    grams = formed_grams(monkeypatch)
    on_chip(monkeypatch, SLOW_FLOAT64)
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


def test_cut_off_sums_stay_within_what_near_pairs_are_chosen_by():
    """A model of Hopper's tensor cores on the worst profile: one slice of products that first climb to their largest
    sum and then come down to the cosine at which pairs begin to be refined."""
    rng = np.random.default_rng(5)
    pairs, columns, cosine = 64, 1024, 3 / 16
    share = (1 + cosine) / 2 * columns  # sum of all positive products; |x||y| = columns
    positive = int(share)
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


def test_wide_products_are_tried_before_they_are_trusted(monkeypatch):
    def right(gram, x, y, first):
        product = x.float() @ y.float().T
        gram.copy_(product if first else gram + product)

    def forgets(gram, x, y, first):
        gram.copy_(x.float() @ y.float().T)

    def refuses(gram, x, y, first):
        raise RuntimeError("addmm: no such kernel")

    for product, works in ((right, True), (forgets, False), (refuses, False)):
        monkeypatch.setattr(_distances_cuda, "_add_wide_product", product)
        assert _distances_cuda._wide_products_work.__wrapped__(CPU) is works


def test_features_are_what_torch_says(monkeypatch):
    matmul = torch.backends.cuda.matmul
    assert _distances_cuda.features(CPU) == _distances_cuda.Features(
        hasattr(torch.ops.aten.addmm, "dtype_out"), True, True
    )
    before = matmul.allow_tf32, matmul.allow_fp16_accumulation
    try:
        matmul.allow_tf32 = matmul.allow_fp16_accumulation = True
        assert not _distances_cuda.features(CPU).exact_float32 and not _distances_cuda.features(CPU).exact_float16
    finally:
        matmul.allow_tf32, matmul.allow_fp16_accumulation = before
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert not _distances_cuda.features(CPU).exact_float32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_read_back_while_a_graph_is_captured(generator, monkeypatch, dtype):
    grams = formed_grams(monkeypatch)
    x = torch.randn(19, 24, generator=generator).to(dtype)
    everything = emulate(x)
    grams.clear()
    monkeypatch.setattr(_distances_cuda, "_capturing", lambda x: True)
    with pytest.raises(UserError, match="a CUDA graph can capture"):
        emulate(x)
    if dtype == torch.float64:
        with pytest.raises(UserError, match="a CUDA graph can capture"):
            emulate(x, None, ["raw"])
        return
    monkeypatch.setattr(torch.Tensor, "tolist", None)
    torch.testing.assert_close(emulate(x, None, ["raw"])["raw"], everything["raw"], rtol=3e-6, atol=0)
    assert grams[0][0] == torch.float64


@pytest.mark.skipif(not hasattr(torch.ops.aten.addmm, "dtype_out"), reason="torch before 2.8 has no such product")
def test_products_with_a_wide_result_are_called_as_torch_declares_them():
    """The one line that no CPU can run, on tensors without data."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.empty(5, 24, dtype=dtype, device="meta")
        gram = torch.empty(5, 8, device="meta")[:, :7]
        for first in (True, False):
            _distances_cuda._add_wide_product(gram, x, torch.empty(7, 24, dtype=dtype, device="meta"), first)


# ---------------------------------------------------------------- panels, alignment, order, gradients


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_panels_and_slices_change_nothing(generator, monkeypatch, dtype, symmetric):
    grams = formed_grams(monkeypatch)
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
def test_gradients_arrive_in_the_dtype_of_the_input(generator, dtype, monkeypatch):
    backends = distances.OPERATION.backends
    on_cpu = [Backend("cuda", ("cpu",), b.run) for b in backends if b.name == "cuda"]
    monkeypatch.setattr(distances.OPERATION, "backends", (*backends[:1], *on_cpu))
    x = torch.randn(9, 5, generator=generator).to(dtype).requires_grad_()
    found = torch.ops.geowidth.pairwise_distances(x, None, "raw,hyperbolic", HYPERBOLIC_RADIUS, "cuda", 1)
    (found[0].sum() + found[1].sum()).backward()
    wide = x.detach().double().requires_grad_()
    sum(distances.pairwise_distances(wide, geometry=g).sum() for g in ("raw", "hyperbolic")).backward()
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
