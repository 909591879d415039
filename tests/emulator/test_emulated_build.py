"""The cache of compiled objects, and the guard zones that tests put around tensors."""

import os
import time

import emulated_build
import pytest
import torch
from guarded import GUARD_BYTES, Guarded


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return emulated_build.cache_folder()


def test_what_was_made_is_kept_and_failures_leave_nothing(cache):
    def fail(path):
        path.write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        emulated_build.kept("key/object", fail)
    assert not (cache / "key/object").exists()
    made = emulated_build.kept("key/object", lambda path: path.write_text("whole"))
    assert emulated_build.kept("key/object", fail) == made and made.read_text() == "whole"


def test_old_entries_go_and_used_ones_stay(cache):
    old, used = cache / "old", cache / "used"
    for folder in (old, used):
        folder.mkdir()
        (folder / "module").write_text("")
        long_ago = time.time() - 15 * 86400
        for path in (folder / "module", folder):
            os.utime(path, (long_ago, long_ago))
    emulated_build.kept("used/module", None)
    emulated_build.forget_old()
    assert used.exists() and not old.exists()


def test_a_key_tells_its_parts_apart():
    assert emulated_build.hash_of(b"ab", b"c") != emulated_build.hash_of(b"a", b"bc")


def test_the_compilers_words_are_the_error():
    with pytest.raises(RuntimeError, match="no/such/file.cpp"):
        emulated_build.call([*emulated_build.compiler(), "-c", "no/such/file.cpp", "-o", os.devnull])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_guarded_tensors(dtype):
    guarded = Guarded()
    with guarded.allocations():
        made = [
            torch.empty(3, 5, dtype=dtype),
            torch.empty((3, 5), dtype=dtype),
            torch.ones(1).new_empty(7, dtype=dtype),
        ]
        made += [torch.empty_like(made[0]), torch.empty(0, 4, dtype=dtype), torch.empty((), dtype=dtype)]
    assert torch.empty(2).data_ptr() not in [whole.data_ptr() + GUARD_BYTES for whole in guarded.whole]
    assert len(guarded.whole) == len(made)
    assert [tuple(t.shape) for t in made] == [(3, 5), (3, 5), (7,), (3, 5), (0, 4), ()]
    for tensor in made:
        assert tensor.dtype == dtype and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
        if dtype.is_floating_point:
            assert tensor.isnan().all()
        tensor.zero_()
    guarded.check()
    guarded.whole[0][GUARD_BYTES - 1] = 0
    with pytest.raises(AssertionError, match="written before a tensor"):
        guarded.check()
