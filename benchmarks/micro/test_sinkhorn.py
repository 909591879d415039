"""Entropic optimal transport of one cost matrix."""

import numpy as np
import pytest

from geowidth.ops import sinkhorn

EPS = 0.02


@pytest.mark.parametrize("provider", ["geowidth", "geowidth, plain torch", "POT"])
def test_plan(timed, provider, costs):
    ot = pytest.importorskip("ot", reason="POT is not installed")
    cost, weights = costs[1], np.full(len(costs[1]), 1 / len(costs[1]))
    timed(
        "sinkhorn",
        {
            "geowidth": lambda: sinkhorn(cost, EPS),
            "geowidth, plain torch": lambda: sinkhorn(cost, EPS, backend="torch"),
            "POT": lambda: ot.sinkhorn(weights, weights, cost, EPS, stopThr=1e-9, numItermax=10000),
        },
    )
