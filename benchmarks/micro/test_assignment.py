"""Dense linear assignment, where the identity is optimal and where it is not."""

import numpy as np
import pytest

from geowidth.ops import assignment


@pytest.mark.parametrize("provider", ["geowidth", "scipy"])
@pytest.mark.parametrize("task", ["identity optimal", "random"])
def test_permutation(timed, provider, task, costs):
    from scipy.optimize import linear_sum_assignment

    cost = costs[0] if task == "identity optimal" else np.random.default_rng(0).random(costs[0].shape)
    timed(f"assignment, {task}", {"geowidth": lambda: assignment(cost), "scipy": lambda: linear_sum_assignment(cost)})
