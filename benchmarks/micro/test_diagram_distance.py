"""The 2-Wasserstein distance of two diagrams of 300 and 270 bars."""

import pytest

from benchmarks.topology import synthetic_diagrams, w2_candidates


@pytest.mark.parametrize("provider", ["geowidth", "hera", "POT"])
def test_distance(timed, provider):
    providers = w2_candidates((*synthetic_diagrams(300), "sup"))
    if providers[provider] is None:
        pytest.skip(f"{provider} is not installed")
    timed("diagram distance", providers)
