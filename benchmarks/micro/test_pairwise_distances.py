"""Distance matrices of one float32 cloud."""

import pytest
import torch

from geowidth.ops import pairwise_distances


@pytest.mark.parametrize("provider", ["geowidth", "geowidth, plain torch", "torch.cdist", "scipy cdist"])
def test_raw(timed, provider, clouds):
    from scipy.spatial.distance import cdist

    x = torch.from_numpy(clouds[0]).float()
    timed(
        "distances, raw",
        {
            "geowidth": lambda: pairwise_distances(x),
            "geowidth, plain torch": lambda: pairwise_distances(x, backend="torch"),
            "torch.cdist": lambda: torch.cdist(x, x),
            "scipy cdist": lambda: cdist(x.numpy(), x.numpy()),
        },
    )


@pytest.mark.parametrize("provider", ["geowidth", "torch, one after the other"])
def test_three_geometries(timed, provider, clouds):
    x = torch.from_numpy(clouds[0]).float()

    def passes():
        unit = torch.nn.functional.normalize(x)
        chord = torch.cdist(unit, unit)
        return torch.cdist(x, x), 2 * torch.asin((chord / 2).clamp(max=1)), 2 * torch.asinh(1.8 * chord)

    timed(
        "distances, three geometries",
        {"geowidth": lambda: pairwise_distances(x, geometry="all"), "torch, one after the other": passes},
    )
