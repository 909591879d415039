"""Intrinsic dimension by TwoNN."""

import pytest

from geowidth.measure import intrinsic_dimension


@pytest.mark.parametrize("provider", ["geowidth", "scikit-dimension"])
def test_twonn(timed, provider, clouds, costs):
    skdim = pytest.importorskip("skdim", reason="scikit-dimension is not installed")
    timed(
        "intrinsic dimension, TwoNN",
        {
            "geowidth": lambda: intrinsic_dimension(costs[0], estimators=("twonn_fit",)),
            "scikit-dimension": lambda: skdim.id.TwoNN().fit(clouds[0]).dimension_,
        },
    )
