"""Fixtures of the ops' tests."""

import warnings

import pytest
import torch

from geowidth.ops import pairwise_distances, triton_support

BACKENDS = [("cpu", "native"), ("cpu", "torch")]
if torch.cuda.is_available():
    BACKENDS += [("cuda", "cuda"), ("cuda", "triton"), ("cuda", "torch")]
if triton_support.interpreted():  # TRITON_INTERPRET=1 pytest tests/ops -k triton: the same tests in the interpreter
    BACKENDS = [("cpu", "triton")]


@pytest.fixture(params=BACKENDS, ids=lambda p: f"{p[1]}-{p[0]}")
def compute(request):
    """pairwise_distances on one backend, results on the CPU."""
    device, backend = request.param

    def call(x, y=None, **options):
        x, y = torch.as_tensor(x).to(device), None if y is None else torch.as_tensor(y).to(device)
        with warnings.catch_warnings():
            # numpy, which stands in for the GPU in Triton's interpreter, reports what a GPU does silently.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
            found = pairwise_distances(x, y, backend=backend, **options)
        return {k: v.cpu() for k, v in found.items()} if isinstance(found, dict) else found.cpu()

    return call
