"""Fixtures for tests that run the CUDA sources on the CPU."""

import os

import emulated_build
import pytest
from guarded import Guarded

from geowidth.ops import backend


@pytest.fixture(scope="session")
def emulated_cuda():
    """geowidth._cuda on CPU memory; its `emulator` (emulated_build.Emulator) sets seed and device, and counts."""
    path = emulated_build.build(address_sanitizer=bool(os.environ.get("GEOWIDTH_ADDRESS_SANITIZER")))
    emulated_build.forget_old()
    return emulated_build.load(path)


@pytest.fixture(autouse=True)
def _as_at_first(request):
    """Every test that uses the emulated module starts with the same seed and an H200."""
    if "emulated_cuda" in request.fixturenames:
        request.getfixturevalue("emulated_cuda").emulator.reset()


@pytest.fixture
def guarded():
    """A guarded.Guarded whose guard zones are checked when the test ends."""
    made = Guarded()
    yield made
    made.check()


@pytest.fixture
def cuda_backend(emulated_cuda, guarded, monkeypatch):
    """The emulated module, served to the ops in place of geowidth._cuda: an op's "cuda" run function, called with CPU
    tensors, runs the real glue and the real kernels. What the glue allocates by torch.empty, empty_like and new_empty
    is guarded."""
    monkeypatch.setattr(backend, "cuda", lambda: (emulated_cuda, None))
    with guarded.allocations():
        yield emulated_cuda
