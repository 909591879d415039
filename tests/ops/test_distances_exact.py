"""What holds bit for bit: a pair's distance depends on the pair alone (on one instruction set), also through `out=`."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate, cloud

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES
from geowidth.ops import pairwise_distances
from geowidth.ops.backend import native
from geowidth.ops.distances import operation as distances


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


def test_a_row_of_another_magnitude_changes_no_other_pair(generator):
    x = cloud(generator, 50, 13, torch.float64)
    alone = native_distances(x)
    beside = native_distances(torch.cat([x, 1e220 * x[:1], 1e-180 * x[1:2]]))
    assert all(torch.equal(beside[name][:50, :50], alone[name]) for name in GEOMETRIES)
    assert all(beside[name].isfinite().all() for name in GEOMETRIES)


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
        truth = pairwise_distances(x.double(), y.double(), geometry="all", backend="torch")
        for name, found in native_distances(x, y).items():
            torch.testing.assert_close(found.double(), truth[name], rtol=3e-7, atol=1e-9)


def test_native_kernel_writes_every_entry_and_nothing_else(generator):
    n, m, stride = 197, 211, 223
    x, y = cloud(generator, n, 13), cloud(generator, m, 13)
    buffers = torch.full((3, n + 2, stride), float("nan"))
    mirrors = torch.full((3, m + 2, stride), float("nan"))
    native()[0].distances(
        x=x,
        y=y,
        out=[b[1:] for b in buffers],
        mirror=[b[1:] for b in mirrors],
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
        for dtype, tolerance in ((torch.float32, 3e-7), (torch.float64, 2e-13)):
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
