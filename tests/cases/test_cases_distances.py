"""Distances where the obvious formula loses its digits: cases A1, A3 and A5. Right values were computed in float64."""

import math

import pytest
import torch

from geowidth.errors import UserError
from geowidth.geometry import poincare_distance, reference_distances
from geowidth.ops import pairwise_distances

BACKENDS = ("native", "torch")


def column(*values, dtype=torch.float32):
    return torch.tensor([[v] for v in values], dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_A1_points_far_from_the_origin_keep_their_distance(backend):
    far = pairwise_distances(column(700001.0), column(700100.0), backend=backend)
    near = pairwise_distances(torch.ones(1, 1000), torch.full((1, 1000), 1.001), backend=backend)
    assert far.item() == 99.0
    assert near.item() == pytest.approx(0.0316242543, rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("offset", [0.0, 10.0, 3000.0, -1e5])
def test_A1_a_common_offset_costs_no_digits(generator, backend, offset):
    cloud = torch.randn(61, 33, generator=generator) + offset
    found = pairwise_distances(cloud, backend=backend)
    truth = reference_distances(cloud)
    assert (found.diagonal() == 0).all() and torch.equal(found, found.T) and bool((found >= 0).all())
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)


def test_A1_the_tf32_switch_changes_no_distance(generator):
    cloud = torch.randn(64, 32, generator=generator) + 10
    before = torch.backends.cuda.matmul.allow_tf32
    found = []
    try:
        for allowed in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            found.append(pairwise_distances(cloud, geometry="all"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_A3_angles_at_the_edge_of_the_domain(backend):
    def angle(x, y):
        x, y = torch.tensor([x]), torch.tensor([y])
        return pairwise_distances(x, y, geometry="spherical", backend=backend).item()

    assert angle([0.3, 0.3, 0.3], [0.3, 0.3, 0.3]) == 0
    assert angle([1.0, 0.0], [1.0, 1e-4]) == pytest.approx(9.9999997e-5, rel=1e-5)
    assert angle([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]) == pytest.approx(math.pi, rel=1e-6)
    assert angle([1e-30, 0.0], [1e30, 1e22]) == pytest.approx(1e-8, rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_A3_angles_lie_between_0_and_pi(generator, backend):
    rows = torch.randn(40, 5, generator=generator)
    rows = torch.cat([rows, -rows, 3 * rows, rows + 1e-7])
    found = pairwise_distances(rows, geometry="spherical", backend=backend)
    assert found.min() == 0 and found.max() <= float(torch.tensor(math.pi))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("geometry", ["spherical", "hyperbolic"])
def test_A3_a_zero_row_is_refused_by_its_number(backend, geometry):
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, -0.0, 0.0]])
    with pytest.raises(UserError, match="row 1 of x is zero"):
        pairwise_distances(rows, geometry=geometry, backend=backend)
    with pytest.raises(UserError, match="row 1 of y is zero"):
        pairwise_distances(rows[:1], rows, geometry=geometry, backend=backend)


def poincare(x, y, dtype=torch.float64, **options):
    return poincare_distance(torch.tensor([x], dtype=dtype), torch.tensor([y], dtype=dtype), **options).item()


def test_A5_poincare_distances_near_the_rim_and_near_zero():
    assert poincare([0.0, 0.0], [1 - 1e-8, 0.0]) == pytest.approx(19.1138279, rel=1e-8)
    assert poincare([0.999999, 0.0], [-0.999999, 0.0]) == pytest.approx(29.0173145, rel=1e-8)
    assert poincare([0.5, 0.0], [-0.5, 0.0]) == pytest.approx(math.log(9), rel=1e-12)
    # The inputs themselves are rounded: 0.3 + 1e-9 carries 1e-7 of its separation.
    assert poincare([0.3, 0.0], [0.3 + 1e-9, 0.0]) == pytest.approx(2.19780226e-9, rel=1e-6)
    assert poincare([0.3, 0.4], [0.3, 0.4]) == 0


@pytest.mark.parametrize("point", [[1 - 1e-8, 0.0], [1.2, 0.0], [float("nan"), 0.0]])
def test_A5_points_not_inside_the_ball_are_refused(point):
    with pytest.raises(UserError, match="row 0 of y has norm .*float64.*rescale"):
        poincare([0.0, 0.0], point, dtype=torch.float32)


def test_A5_curvature_scales_lengths():
    for curvature in (-0.25, -4.0, -1e-4):
        factor = 1 / math.sqrt(-curvature)
        found = poincare([0.5 * factor, 0.1 * factor], [-0.5 * factor, 0.0], curvature=curvature)
        assert found == pytest.approx(factor * poincare([0.5, 0.1], [-0.5, 0.0]), rel=1e-12)
