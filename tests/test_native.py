"""The extension's own machinery: thread pool and instruction-set dispatch."""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys

import pytest

from geowidth import _native


@pytest.mark.parametrize("count", [0, 1, 2, 7, 97, 10_007])
@pytest.mark.parametrize("grain", [1, 3, 1000])
@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_every_index_runs_once(count, grain, threads):
    assert _native.parallel_sum(count, grain, threads) == count * (count - 1) // 2


def test_an_exception_reaches_the_caller_and_the_pool_lives_on():
    for _ in range(20):
        with pytest.raises(RuntimeError, match="asked to fail"):
            _native.parallel_sum(10_000, 1, 4, fail_at=4321)
        assert _native.parallel_sum(100, 1, 4) == 4950


def test_concurrent_callers_do_not_wait_for_each_other():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda n: _native.parallel_sum(n, 1, 3), range(0, 4000, 10)))
    assert sums == [n * (n - 1) // 2 for n in range(0, 4000, 10)]


def _in_child(queue):
    # Two threads at once, the first use of the pool in this process.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        queue.put(list(pool.map(lambda _: _native.parallel_sum(5000, 1, 2), range(40))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own_pool():
    _native.parallel_sum(5000, 1, 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == [5000 * 4999 // 2] * 40
    child.join(120)
    assert child.exitcode == 0


@pytest.mark.parametrize("asked", ["portable", "avx2", "avx512", "nonsense"])
def test_the_variant_can_be_forced_only_to_one_that_runs(asked):
    best = _native.build_information()["variant"]
    code = "from geowidth import _native; print(_native.build_information()['variant'])"
    environment = {**os.environ, "GEOWIDTH_CPU_VARIANT": asked}
    got = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout.strip()
    ranks = ["portable", "avx2", "avx512"]
    assert got == (asked if asked in ranks and ranks.index(asked) <= ranks.index(best) else best)
