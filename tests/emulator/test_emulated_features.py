"""What the emulator promises to kernels, feature by feature."""

import numpy as np
import pytest
import torch
from selftest import Selftest

SEEDS = range(8)


@pytest.fixture
def selftest(emulated_cuda):
    return Selftest(emulated_cuda)


@pytest.fixture(params=SEEDS)
def seeded(request, selftest):
    selftest.module.emulator.set_seed(request.param)
    return selftest


def nan(count, dtype=np.float32):
    return np.full(count, np.nan, dtype)


@pytest.mark.sanitized
@pytest.mark.parametrize("threads", [1, 31, 32, 97, 1024])
def test_barrier_and_shared_memory(seeded, threads):
    x = np.arange(threads, dtype=np.float32)
    out = seeded.run("neighbours", x, nan(threads), block=threads, shared=4 * threads, n=threads)
    assert (out == np.roll(x, -1)).all()


def test_two_barriers_a_turn(seeded):
    x = np.arange(67, dtype=np.int32)
    out = seeded.run("carousel", x, np.zeros(67, np.int32), block=67, shared=4 * 67, n=67)
    assert (out == np.roll(x, -5)).all()


@pytest.mark.parametrize("block", [(64,), (8, 8), (4, 8, 16)])
@pytest.mark.parametrize(("name", "dtype"), [("block_sum_float", np.float32), ("block_sum_int64", np.int64)])
def test_sum_by_shuffles_and_threads_numbered_x_first(seeded, block, name, dtype):
    threads = int(np.prod(block))
    x = np.arange(threads, dtype=dtype) + 1
    out = seeded.run(name, x, np.zeros(1, dtype), block=block, shared=8 * threads // 32, n=threads)
    assert out[0] == threads * (threads + 1) // 2


@pytest.mark.parametrize("width", [32, 16, 4])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_shuffles(selftest, dtype, width):
    x = (np.arange(64) + (2**40 if dtype in (np.int64, np.float64) else 0)).astype(dtype)
    name = {"int32": "int", "int64": "int64", "float32": "float", "float64": "double"}[np.dtype(dtype).name]
    out = selftest.run(f"shuffles_{name}", x, np.zeros(256, dtype), block=64, n=width).reshape(4, 64)
    lane = np.arange(64)
    first = lane // width * width
    assert (out[0] == x[first + 3 % width]).all()
    assert (out[1] == x[np.where(lane - 2 >= first, lane - 2, lane)]).all()
    assert (out[2] == x[np.where(lane + 1 < first + width, lane + 1, lane)]).all()
    # A source in a later segment is the lane itself; one in an earlier segment is read.
    assert (out[3] == x[np.where((lane ^ 5) < first + width, lane ^ 5, lane)]).all()


@pytest.mark.parametrize("values", [[0] * 64, [1] * 64, [0] * 63 + [1], [2, 0] * 32, [0, -1] + [3] * 62])
def test_votes(selftest, values):
    x = np.array(values, np.int32)
    out = selftest.run("votes", x, np.zeros((64, 7), np.int32), block=64)
    warps = (x != 0).reshape(2, 32)
    ballots = np.packbits(warps, axis=1, bitorder="little").view(np.int32)[:, 0]
    wanted = [x.any(), x.all(), (x != 0).sum(), ballots.repeat(32), warps.any(1).repeat(32), warps.all(1).repeat(32)]
    for found, right in zip(out.T, [*wanted, 32], strict=True):
        assert (found == right).all()


def test_a_part_of_a_warp_and_lanes_that_have_left(seeded):
    out = seeded.run("partial_warp", np.zeros(1), np.zeros(32, np.uint32))
    assert (out[:16] == 102 + 0xAAAA).all()
    assert (out[16:24] == 0x00030000).all() and (out[24:] == 0).all()


def test_atomics(seeded):
    x = (np.arange(7 * 96) * 7919 % 1009 - 500).astype(np.int32)
    out = seeded.run("atomics", x, np.zeros(10, np.int32), grid=7, block=96)
    assert list(out[:5]) == [x.sum(), x.max(), x.min(), x.sum(), 7]
    assert out[5:6].view(np.float32)[0] == out[6:8].view(np.float64)[0] == x.sum()
    assert out[8:10].view(np.uint64)[0] == x.size << 33 and seeded.counter[0] == x.size


def test_the_last_block_of_a_plain_launch(seeded):
    x = np.arange(101, dtype=np.float32)
    assert seeded.run("last_block", x, nan(102), grid=101, block=1)[101] == x.sum()


@pytest.mark.sanitized
@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (2, 33), (37, 64)])
def test_grid_barrier(seeded, blocks, threads):
    x = np.arange(blocks, dtype=np.int32)
    out = seeded.run("ring", x, np.zeros(2 * blocks, np.int32), grid=blocks, block=threads, cooperative=True, n=5)
    assert (out[blocks:] == np.roll(x, -5) + 5).all()


def test_grids_of_three_axes_and_threads_that_leave(selftest):
    out = selftest.run("divergent", np.zeros(1), np.full(50, -1, np.int32), grid=(2, 3, 5), block=50, n=41)
    assert (out[:41] == np.arange(41)).all() and (out[41:] == -1).all()
    assert selftest.module.emulator.statistics()["blocks"] == 30


def test_vectors(selftest):
    x = np.arange(52, dtype=np.float32)
    assert (selftest.run("vectors", x, nan(52), block=13) == x).all()


def test_rounding_is_torchs(selftest):
    """All exponents, halfway cases and their neighbours, subnormals, infinities and NaN."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    fractions = [0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FE000, 0x7FFFFF]
    bits = (exponents | np.array(fractions, np.uint32)).ravel()
    values = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    found = np.concatenate(
        [
            selftest.run("rounding", part, np.zeros((len(part), 4), np.uint32), block=len(part))
            for part in np.array_split(np.ascontiguousarray(values), len(values) // 1000 + 1)
        ]
    )
    for dtype, (narrow, wide) in {torch.bfloat16: found.T[:2], torch.float16: found.T[2:]}.items():
        right = torch.from_numpy(values).to(dtype)
        is_nan = np.isnan(values)
        assert (narrow == right.view(torch.int16).numpy().view(np.uint16))[~is_nan].all()
        assert (wide == right.float().numpy().view(np.uint32))[~is_nan].all()
        assert (narrow[is_nan] == 0x7FFF).all() and np.isnan(wide[is_nan].view(np.float32)).all()


def test_a_seed_gives_an_order_and_another_seed_another(selftest):
    def order(seed):
        selftest.module.emulator.set_seed(seed)
        return tuple(selftest.run("order", np.zeros(1), np.zeros(96, np.uint32), grid=3))

    orders = {order(seed) for seed in SEEDS}
    assert order(3) == order(3) and len(orders) == len(SEEDS)
    assert all(sorted(each) == list(range(96)) for each in orders)
    assert len({each[0] // 32 for each in orders}) > 1, "blocks always start in the same order"


def test_statistics(selftest):
    selftest.run("neighbours", nan(33), nan(33), grid=4, block=33, shared=132, n=33)
    selftest.run("ring", np.zeros(3), np.zeros(6, np.int32), grid=3, block=2, cooperative=True, n=2)
    found = selftest.module.emulator.statistics()
    assert (found["launches"], found["cooperative_launches"], found["blocks"]) == (2, 1, 7)
    assert found["threads"] == 4 * 33 + 6 and found["barriers"] == 4 + 2 * 2 * 3 and found["shared_bytes"] == 132


def test_the_card_can_be_another(selftest):
    emulator = selftest.module.emulator
    out, x = np.zeros(64, np.int32), np.zeros(32, np.int32)
    emulator.set_device(multiprocessors=2, shared_bytes=100_000)
    options = dict(block=1024, cooperative=True, n=1)
    assert selftest.failure("ring", x, out, grid=4, **options) == ""
    assert "too many blocks" in selftest.failure("ring", x, out, grid=5, **options)
    assert selftest.failure("ring", x, out, grid=2, shared=60_000, **options) == ""
    assert "too many blocks" in selftest.failure("ring", x, out, grid=3, shared=60_000, **options)
    assert "invalid argument" in selftest.failure("ring", x, out, grid=1, shared=100_001, **options)
    emulator.set_device()
    assert selftest.failure("ring", x, out, grid=3, shared=60_000, **options) == ""


def test_all_of_the_shared_memory_can_be_had(selftest):
    x = np.arange(31, dtype=np.float32)
    assert (selftest.run("neighbours", x, nan(31), block=31, shared=232_448, n=31) == np.roll(x, -1)).all()
