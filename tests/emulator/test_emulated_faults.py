"""Every planted fault of selftest.cu is found, and named."""

import re

import numpy as np
import pytest
from selftest import Selftest

SEEDS = range(8)


@pytest.fixture
def selftest(emulated_cuda):
    return Selftest(emulated_cuda)


def wrong_seeds(selftest, name, source, out, right, **options):
    """The seeds under which the result is not `right`."""
    wrong = []
    for seed in SEEDS:
        selftest.module.emulator.set_seed(seed)
        fresh = np.full_like(out, -1)
        if not np.array_equal(selftest.run(name, source, fresh, **options), right):
            wrong.append(seed)
    return wrong


def test_a_removed_barrier(selftest):
    x = np.arange(64, dtype=np.float32)
    options = dict(block=64, shared=256, n=64)
    assert wrong_seeds(selftest, "neighbours", x, x, np.roll(x, -1), **options) == []
    assert wrong_seeds(selftest, "neighbours", x, x, np.roll(x, -1), fault=1, **options) == list(SEEDS)


def test_a_removed_barrier_between_reading_and_writing(selftest):
    x = np.arange(64, dtype=np.int32)
    options = dict(block=64, shared=256, n=64)
    assert wrong_seeds(selftest, "carousel", x, x, np.roll(x, -5), **options) == []
    assert wrong_seeds(selftest, "carousel", x, x, np.roll(x, -5), fault=1, **options) == list(SEEDS)


def test_a_removed_barrier_after_a_warps_work(selftest):
    """Warps that keep in step by their shuffles hide it under some seeds, not under all of a few."""
    x = np.ones(256, np.float32)
    options = dict(block=256, shared=32, n=256)
    right = np.array([256], np.float32)
    assert wrong_seeds(selftest, "block_sum_float", x, right, right, **options) == []
    assert len(wrong_seeds(selftest, "block_sum_float", x, right, right, fault=1, **options)) >= len(SEEDS) // 2


def test_a_removed_grid_barrier(selftest):
    x = np.arange(7, dtype=np.int32)
    options = dict(grid=7, block=2, cooperative=True, n=2)
    right = np.concatenate([np.roll(x, -2) + 2, np.roll(x, -1) + 1])
    assert wrong_seeds(selftest, "ring", x, right, right, **options) == []
    assert wrong_seeds(selftest, "ring", x, right, right, fault=2, **options) == list(SEEDS)


def test_a_sum_that_is_not_atomic(selftest):
    x = np.ones(64, np.int32)
    assert not selftest.failure("atomics", x, np.zeros(10, np.int32), block=64, fault=1)
    assert selftest.counter[0] < 64


def test_shared_memory_that_was_never_written(selftest):
    x = np.ones(13, np.float32)
    out = selftest.run("neighbours", x, np.zeros(13, np.float32), block=13, shared=52, n=13, fault=3)
    assert np.isnan(out).sum() == 1


@pytest.mark.parametrize("threads", [13, 64])
def test_a_write_past_shared_memory(selftest, threads):
    x = np.ones(threads, np.float32)
    words = selftest.failure("neighbours", x, x, block=threads, shared=4 * threads, n=threads, fault=2)
    assert f"block (0, 0, 0) wrote outside its dynamic shared memory of {4 * threads} bytes" in words


def test_a_write_past_an_output(emulated_cuda, guarded):
    x = guarded.like(np.ones(13, np.int32)).numpy()
    out = guarded.empty(13).numpy()
    assert not Selftest(emulated_cuda).failure("careless", x, out, n=13, fault=1)
    with pytest.raises(AssertionError, match="4 bytes, the first at 0 of 256"):
        guarded.check()
    guarded.whole.clear()


FAILURES = {
    "threads leave before a barrier": (
        "divergent",
        1,
        dict(block=50, n=41),
        r"le(ft|aves) the kernel.*barrier is diverg",
    ),
    "two barriers at once": ("divergent", 2, dict(block=50, n=41), r"reaches __syncthreads at tests/emulator/selftest"),
    "a flag nobody sets": (
        "divergent",
        3,
        dict(block=50),
        r"deadlock.* 1 of 50 threads.*__nanosleep.* 49 of 50 threads.*__sync",
    ),
    "a block leaves before a grid barrier": ("ring", 1, dict(grid=5, n=3, cooperative=True), r"deadlock.*grid_barrier"),
    "a cooperative grid too large": ("ring", 0, dict(grid=133 * 32, n=1, cooperative=True), "too many blocks in coop"),
    "a lane outside the mask": ("partial_warp", 1, {}, r"lane \d+ reads lane 20, which takes no part"),
    "two masks": ("partial_warp", 2, {}, r"0x00007fff.*lanes of one warp disagree"),
    "a lane that leaves itself out": ("partial_warp", 3, {}, r"is not itself among the lanes of its __ballot_sync"),
    "two functions": ("partial_warp", 4, {}, r"__any_sync.*lanes of one warp disagree"),
    "a lane that has left": ("partial_warp", 5, {}, r"reads lane 31, which takes no part"),
    "a vector not aligned": (
        "vectors",
        1,
        dict(block=2),
        r"accesses 16 bytes at an address that is not aligned.*selftest",
    ),
    "too much shared memory": ("neighbours", 0, dict(shared=232_449, n=32), "invalid argument"),
    "too many threads": ("neighbours", 0, dict(block=1025, shared=8000, n=32), "invalid configuration"),
    "too many rows of blocks": ("neighbours", 0, dict(grid=(1, 65536), n=32), "invalid configuration"),
    "an empty grid": ("neighbours", 0, dict(grid=0, n=32), "invalid configuration"),
    "a sum that overflows": (
        "careless",
        3,
        dict(n=20),
        r"undefined behaviour at tests/emulator/selftest.cu:\d+:\d+: a sum",
    ),
    "a shift too far": ("careless", 4, dict(n=20), r"undefined behaviour.*a shift by too many bits"),
    "a stack that overflows": ("careless", 5, dict(n=20), r"used more stack than the \d+ bytes it has"),
}


@pytest.mark.parametrize(("name", "fault", "options", "words"), FAILURES.values(), ids=FAILURES)
def test_a_launch_fails_with_words(selftest, name, fault, options, words):
    x = np.ones(8192, np.float32).view(np.int32)
    found = selftest.failure(name, x, np.zeros(8192, np.int32), fault=fault, **options)
    assert re.search(words, found), found
    if found.startswith("CUDA kernel launch: kernel("):
        assert selftest.module.emulator.last_failure() in found
    after = np.arange(5, dtype=np.float32)
    assert (selftest.run("neighbours", after, after.copy(), block=5, shared=20, n=5) == np.roll(after, -1)).all()
