"""Calls of the kernels in selftest.cu."""

import ctypes
from dataclasses import dataclass, field

import numpy as np


def three(extent):
    """Grid or block extents as CUDA wants them."""
    extent = (extent,) if isinstance(extent, int) else tuple(extent)
    return (ctypes.c_uint * 3)(*extent, *(1,) * (3 - len(extent)))


@dataclass
class Selftest:
    """The kernels of one emulated module; `counter` is the device counter of the last launch."""

    module: object
    counter: np.ndarray = field(default_factory=lambda: np.zeros(1, np.uint32))

    def failure(self, name, source, out, *, grid=1, block=32, shared=0, cooperative=False, n=0, fault=0):
        """Launches the kernel of that name, from array to array; an empty string, or why the launch failed."""
        function = self.module.emulator.library.selftest
        function.restype = ctypes.c_char_p
        self.counter[:] = 0
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in (source, out, self.counter)]
        words = function(
            name.encode(), three(grid), three(block), ctypes.c_size_t(shared), cooperative, *addresses, n, fault
        )
        return words.decode()

    def run(self, name, source, out, **options):
        """`out` after a launch that must not fail."""
        words = self.failure(name, source, out, **options)
        assert not words, words
        return out
