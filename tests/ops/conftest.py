"""Fixtures of the ops' tests."""

import pytest
import torch

from geowidth.ops import pairwise_distances, triton_support

BACKENDS = [("cpu", "native"), ("cpu", "torch")]
if torch.cuda.is_available():
    BACKENDS += [("cuda", "cuda"), ("cuda", "triton"), ("cuda", "torch")]
if triton_support.interpreted():  # a process of its own, started by tests/kernels/test_measure_interpreted.py
    BACKENDS = [("cpu", "triton")]


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
