"""How many threads of the CPU an op uses."""

import os
from contextlib import contextmanager

import torch

from geowidth.errors import whole

MOST_THREADS = max(256, os.cpu_count() or 1)


def thread_count(threads):
    """The number of threads to use: the one asked for, or torch's if None."""
    return torch.get_num_threads() if threads is None else whole("threads", threads, 1, MOST_THREADS)


@contextmanager
def torch_threads(count):
    """Let torch's matrix products use `count` threads inside the block."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
