"""Times of single ops beside their peers, one group a task: `pytest benchmarks/micro --benchmark-only`.

`--benchmark-autosave` keeps a run and `--benchmark-compare` sets the next one beside it. The sizes are those of a quick
look; sweeps over sizes, with errors and ratios, are `python -m benchmarks.run NAME`.
"""

import numpy as np
import pytest
import torch

from benchmarks.clouds import language_model_cloud
from geowidth.ops import pairwise_distances

POINTS, DIMENSION = 256, 256


@pytest.fixture(autouse=True)
def _one_thread():
    """One thread each, so that no library gains by taking more cores than another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def clouds():
    """A cloud before and after a residual FFN, float64 (n, d) numpy each."""
    return language_model_cloud(POINTS, DIMENSION)


@pytest.fixture(scope="session")
def costs(clouds):
    """Their distances over the first's mean, float64 (n, n) numpy each."""
    matrices = [pairwise_distances(torch.from_numpy(cloud)).numpy() for cloud in clouds]
    return [np.ascontiguousarray(matrix / matrices[0].mean()) for matrix in matrices]


@pytest.fixture
def timed(benchmark, request):
    """timed(group, {provider: function}): time the provider that the test's parameter names, within its group."""

    def run(group, providers):
        benchmark.group = group
        return benchmark(providers[request.getfixturevalue("provider")])

    return run
