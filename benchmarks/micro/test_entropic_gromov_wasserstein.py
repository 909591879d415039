"""Entropic Gromov-Wasserstein at eps 0.01 of the squared mean distance."""

import pytest
import torch

from geowidth.ops import entropic_gromov_wasserstein

EPS = 0.01


@pytest.mark.parametrize("provider", ["geowidth", "geowidth, float32", "POT"])
def test_plan(timed, provider, costs):
    ot = pytest.importorskip("ot", reason="POT is not installed")
    single = [torch.from_numpy(cost).float() for cost in costs]
    timed(
        "entropic Gromov-Wasserstein",
        {
            "geowidth": lambda: entropic_gromov_wasserstein(*costs, eps=EPS),
            "geowidth, float32": lambda: entropic_gromov_wasserstein(*single, eps=EPS),
            "POT": lambda: ot.gromov.entropic_gromov_wasserstein(
                *costs, epsilon=EPS, symmetric=True, tol=1e-6, max_iter=100, numItermax=100, stopThr=1e-7
            ),
        },
    )
