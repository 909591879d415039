"""Degree-one persistence diagrams of a full distance matrix."""

import pytest

from benchmarks.topology import rips_candidates


@pytest.mark.parametrize("provider", ["geowidth", "gudhi float32", "ripser", "redzed-tda"])
def test_diagram(timed, provider, costs):
    providers = rips_candidates(costs[:1])
    if providers[provider] is None:
        pytest.skip(f"{provider} is not installed")
    timed("persistence", providers)
