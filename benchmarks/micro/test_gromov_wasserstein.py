"""The Gromov-Wasserstein statistic with its certificate."""

import pytest

from geowidth.ops import gromov_wasserstein


@pytest.mark.parametrize("provider", ["geowidth", "geowidth, plain torch", "POT from the identity", "POT"])
def test_statistic(timed, provider, costs):
    ot = pytest.importorskip("ot", reason="POT is not installed")
    import numpy as np

    identity = np.eye(len(costs[0])) / len(costs[0])
    timed(
        "Gromov-Wasserstein",
        {
            "geowidth": lambda: gromov_wasserstein(*costs),
            "geowidth, plain torch": lambda: gromov_wasserstein(*costs, backend="torch"),
            "POT from the identity": lambda: ot.gromov.gromov_wasserstein(*costs, G0=identity, symmetric=True),
            "POT": lambda: ot.gromov.gromov_wasserstein(*costs, symmetric=True),
        },
    )
