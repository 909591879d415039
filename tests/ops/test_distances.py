"""pairwise_distances: every backend against extended precision, the cases peers get wrong, and exact invariances."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, extended_distances

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, reference_distances
from geowidth.ops import distances, pairwise_distances
from geowidth.ops.backend import native

BACKENDS = [("cpu", "native"), ("cpu", "torch")]
if torch.cuda.is_available():
    BACKENDS += [("cuda", "cuda"), ("cuda", "torch")]
TOLERANCE = {torch.float32: 3e-7, torch.float64: 2e-13}
SHAPES = [(1, 1, 1), (2, 3, 1), (7, 5, 3), (29, 31, 37), (197, 61, 31)]


@pytest.fixture(params=BACKENDS, ids=lambda p: f"{p[1]}-{p[0]}")
def compute(request):
    """pairwise_distances on one backend, results on the CPU."""
    device, backend = request.param

    def call(x, y=None, **options):
        found = pairwise_distances(
            torch.as_tensor(x).to(device),
            None if y is None else torch.as_tensor(y).to(device),
            backend=backend,
            **options,
        )
        return {k: v.cpu() for k, v in found.items()} if isinstance(found, dict) else found.cpu()

    return call


def cloud(generator, n, d, dtype=torch.float32, offset=3.0):
    """Off-centre rows, some of them duplicates, scaled copies, opposites and near-duplicates."""
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + offset
    if n > 6:
        x[2] = x[1]
        x[3] = 1.001 * x[1]
        x[4] = -2 * x[1]
        x[5] = x[1] + 1e-5 * x[6]
    return x.to(dtype)


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


# ---------------------------------------------------------------- a pair's result depends on the pair alone


def native_distances(x, y=None, **options):
    return pairwise_distances(x, y, backend="native", geometry="all", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_matrix_around_a_pair(generator, dtype):
    x = cloud(generator, 401, 53, dtype)
    whole = native_distances(x)
    order = torch.randperm(401, generator=generator)
    some = order[:67]
    permuted, part, rectangle = native_distances(x[order]), native_distances(x[some]), native_distances(x[some], x)
    for name, matrix in whole.items():
        assert torch.equal(permuted[name], matrix[order][:, order])
        assert torch.equal(part[name], matrix[some][:, some])
        twin = rectangle[name].clone()
        twin[torch.arange(67), some] = 0  # a row against itself: exactly 0 anyway, checked next
        assert torch.equal(twin, matrix[some]) and torch.equal(rectangle[name], twin)
        assert torch.equal(pairwise_distances(x, x[some], geometry=name, backend="native"), rectangle[name].T)
        assert torch.equal(pairwise_distances(x, geometry=name, backend="native"), matrix)


def test_bits_do_not_depend_on_the_thread_count(generator):
    x, y = cloud(generator, 613, 31), cloud(generator, 401, 31)
    for other in (None, y):
        one = native_distances(x, other, threads=1)
        for threads in (2, 3, 7):
            many = native_distances(x, other, threads=threads)
            assert all(torch.equal(one[name], many[name]) for name in GEOMETRIES)


def test_wide_and_deep_inputs_cross_every_block(generator):
    for n, m, d in ((193, 24, 517), (25, 385, 256), (192, 191, 257)):
        x, y = cloud(generator, n, d), cloud(generator, m, d)
        for name, found in native_distances(x, y).items():
            torch.testing.assert_close(found.double(), reference_distances(x, y, name), rtol=3e-7, atol=1e-9)


def test_native_kernel_writes_every_entry_and_nothing_else(generator):
    n, m, stride = 197, 211, 223
    x, y = cloud(generator, n, 13), cloud(generator, m, 13)
    buffers = torch.full((3, n + 2, stride), float("nan"))
    mirrors = torch.full((3, m + 2, stride), float("nan"))
    native()[0].distances_float32(
        x=x.data_ptr(),
        n=n,
        y=y.data_ptr(),
        m=m,
        depth=13,
        out=[b[1:].data_ptr() for b in buffers],
        stride=stride,
        mirror=[b[1:].data_ptr() for b in mirrors],
        mirror_stride=stride,
        scale=1.8,
        near=2.0**-18,
        symmetric=False,
        threads=2,
    )
    for buffer, mirror in zip(buffers, mirrors, strict=True):
        inside = buffer[1 : n + 1, :m]
        assert not inside.isnan().any() and torch.equal(mirror[1 : m + 1, :n], inside.T)
        assert int(buffer.isnan().sum()) == buffer.numel() - n * m
        assert int(mirror.isnan().sum()) == mirror.numel() - n * m


BUILT = native()[0].build_information()


@pytest.mark.parametrize("variant", [v for v in BUILT["variants"] if v != BUILT["variant"]])
def test_every_other_instruction_set(variant, tmp_path, generator):
    """Each in a process of its own: the choice is made once. What the processor lacks falls back to what it has."""
    x = cloud(generator, 211, 37)
    np.save(tmp_path / "x.npy", x.numpy())
    script = (
        "import sys, numpy, torch; from geowidth.ops import pairwise_distances as p\n"
        "x = torch.from_numpy(numpy.load(sys.argv[1]))\n"
        "for t in (x, x.double()):\n"
        "    for k, v in p(t, geometry='all', backend='native').items():\n"
        "        numpy.save(f'{sys.argv[2]}/{k}-{v.dtype}.npy', v.numpy())\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.npy"), str(tmp_path)],
        check=True,
        env=os.environ | {"GEOWIDTH_CPU_VARIANT": variant},
    )
    for name in GEOMETRIES:
        for dtype, tolerance in TOLERANCE.items():
            assert_accurate(np.load(tmp_path / f"{name}-{dtype}.npy"), x, x, name, tolerance)


# ---------------------------------------------------------------- results into arrays and memory maps


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_into_a_memory_map_have_the_same_bits(tmp_path, generator, monkeypatch, symmetric):
    monkeypatch.setattr(distances, "BLOCK", 64)
    x = cloud(generator, 211, 17)
    y = None if symmetric else cloud(generator, 131, 17)
    columns = 211 if symmetric else 131
    maps = {name: np.memmap(tmp_path / f"{name}.bin", np.float32, "w+", shape=(211, columns)) for name in GEOMETRIES}
    for array in maps.values():
        array[:] = np.nan
    assert pairwise_distances(x, y, geometry="all", out=maps, backend="native") is maps
    whole = pairwise_distances(x, y, geometry="all", backend="native")
    assert all(np.array_equal(maps[name], whole[name].numpy()) for name in GEOMETRIES)
    alone = torch.empty(211, columns)
    assert pairwise_distances(x, y, geometry="spherical", out=alone) is alone
    assert torch.equal(alone, whole["spherical"])


def test_out_is_checked_before_any_work():
    x = torch.ones(3, 2)
    with pytest.raises(UserError, match=r"out for raw is \(3, 2\) float32; it must be \(3, 3\) float32"):
        pairwise_distances(x, out=np.empty((3, 2), np.float32))
    with pytest.raises(UserError, match=r"out for raw is \(3, 3\) float64; it must be \(3, 3\) float32"):
        pairwise_distances(x, out=torch.empty(3, 3, dtype=torch.float64))
    with pytest.raises(UserError, match="out needs an entry for 'spherical'"):
        pairwise_distances(x, geometry="all", out={"raw": np.empty((3, 3), np.float32)})
    frozen = np.empty((3, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(UserError, match="read-only"):
        pairwise_distances(x, out=frozen)
    with pytest.raises(UserError, match="out= is not differentiable"):
        pairwise_distances(x.requires_grad_(), out=np.empty((3, 3), np.float32))


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("geometry", ["raw", "hyperbolic", "all"])
def test_gradients_are_those_of_finite_differences(compute, generator, geometry):
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)

    def rectangle(a, b):
        found = compute(a, b, geometry=geometry)
        return tuple(found.values()) if geometry == "all" else found

    def triangle(a):
        found = compute(a, geometry=geometry)
        return tuple(v.triu(1) for v in found.values()) if geometry == "all" else found.triu(1)

    assert torch.autograd.gradcheck(rectangle, (x, y))
    assert torch.autograd.gradcheck(triangle, (x,))


def test_registration_is_sound(generator):
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    for arguments in ((x, y), (x, None)):
        torch.library.opcheck(
            torch.ops.geowidth.pairwise_distances.default, (*arguments, "raw,spherical,hyperbolic", 0.7, "native", 1)
        )


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_pairs_at_distance_zero_have_no_gradient(compute, geometry):
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0]], requires_grad=True)
    compute(x[:2], geometry=geometry).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    compute(x[:1], x[1:2], geometry=geometry).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    if geometry != "raw":  # exactly opposite directions: the angle has its peak there
        compute(x[:1], x[2:], geometry=geometry).sum().backward()
        assert torch.equal(x.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("separation", [1e-3, 1e-6, 1e-9])
def test_gradients_of_near_duplicates_keep_their_direction(compute, generator, separation):
    y = torch.randn(1, 31, generator=generator, dtype=torch.float64)
    step = torch.randn(1, 31, generator=generator, dtype=torch.float64)
    x = (y + separation * step).requires_grad_()
    (raw,) = torch.autograd.grad(compute(x, y).sum(), x)
    difference = x.detach() - y
    torch.testing.assert_close(raw, difference / difference.norm(), rtol=1e-9, atol=1e-12)
    (angular,) = torch.autograd.grad(compute(x, y, geometry="spherical").sum(), x)
    u = (x / x.norm()).detach()
    tangent = difference - (difference * u).sum() * u
    torch.testing.assert_close(angular, tangent / tangent.norm() / x.detach().norm(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_arrive_in_the_dtype_of_the_input(compute, generator, dtype):
    x = torch.randn(9, 5, generator=generator).to(dtype).requires_grad_()
    compute(x, geometry="all")["hyperbolic"].sum().backward()
    wide = x.detach().double().requires_grad_()
    compute(wide, geometry="hyperbolic").sum().backward()
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_only_the_gradient_that_is_wanted(compute, generator):
    x, y = torch.randn(5, 3, generator=generator, requires_grad=True), torch.randn(4, 3, generator=generator)
    compute(x, y).sum().backward()
    assert x.grad.shape == (5, 3) and y.grad is None


def test_second_derivatives_are_refused(generator):
    x = torch.randn(5, 3, generator=generator, requires_grad=True)
    (gradient,) = torch.autograd.grad(pairwise_distances(x).sum(), x, create_graph=True)
    with pytest.raises(UserError, match="differentiable once"):
        gradient.sum().backward()


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
        (torch.ones(3), None, {}, r"x has shape \(3,\); allowed: two axes"),
        (torch.ones(4, 3), torch.ones(4, 2), {}, r"x is \(4, 3\) and y is \(4, 2\)"),
        (torch.ones(2, 2, dtype=torch.complex64), None, {}, "x is torch.complex64; allowed: float16"),
        (torch.ones(2, 2), torch.ones(2, 2, device="meta"), {}, "x is on cpu and y on meta"),
        (torch.ones(2, 2), None, {"geometry": "flat"}, "geometry is 'flat'; allowed: raw, spherical, hyperbolic, all"),
        (torch.ones(2, 2), None, {"geometry": ["raw", "raw"]}, "at most once"),
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
    assert "GPU" in reasons["cuda"] or "was not built" in reasons["cuda"]
    assert reasons["torch"] is None


def test_oracle_agrees_with_the_plain_reference(generator):
    x = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    for name in GEOMETRIES:
        found = distances.pairwise_distances_reference(x, geometry=name).numpy()
        assert np.abs(found - extended_distances(x, x, name)).max() < 1e-14
