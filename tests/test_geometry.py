"""The float64 geometry: known values, extended-precision comparison, and the rules of a metric."""

import math

import numpy as np
import pytest
import torch
from distance_oracle import extended_distances

from geowidth.errors import UserError
from geowidth.geometry import (
    GEOMETRIES,
    HYPERBOLIC_RADIUS,
    hyperbolic_from_angle,
    paired_distances,
    poincare_distance,
    reference_distances,
)


def points(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


def test_names_order_and_default_radius():
    assert list(GEOMETRIES) == ["raw", "spherical", "hyperbolic"]
    assert [g.directional for g in GEOMETRIES.values()] == [False, True, True]
    assert math.tanh(1) == HYPERBOLIC_RADIUS


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0), (1 - 1e-8, 0), 19.1138279),
        ((0.999999, 0), (-0.999999, 0), 29.0173145),
        ((0.5, 0), (-0.5, 0), math.log(9)),
        ((0.3, 0), (0.3 + 1e-9, 0), 2.19780226e-9),
        ((0.3, 0.2), (0.3, 0.2), 0.0),
    ],
)
def test_poincare_known_values(a, b, expected):
    found = poincare_distance(points(a), points(b))
    assert found.shape == (1,)
    assert float(found) == pytest.approx(expected, rel=1e-6 if expected < 1e-6 else 1e-8, abs=0)


@pytest.mark.parametrize(
    ("point", "dtype"), [((1 - 1e-8, 0), torch.float32), ((1.2, 0), torch.float64), ((float("nan"), 0), torch.float64)]
)
def test_poincare_refuses_points_on_the_rim(point, dtype):
    inside = points((0.1, 0.1), (0.2, 0), dtype=dtype)
    with pytest.raises(UserError, match=r"row 1 of y has norm .*give float64 points .*or rescale"):
        poincare_distance(inside, points((0, 0), point, dtype=dtype))


def test_poincare_curvature_scales_distances():
    x, y = torch.rand(5, 3, dtype=torch.float64) * 0.4, torch.rand(5, 3, dtype=torch.float64) * 0.4
    scaled = poincare_distance(x / 2, y / 2, curvature=-4.0)
    torch.testing.assert_close(scaled, poincare_distance(x, y) / 2, rtol=1e-13, atol=0)
    with pytest.raises(UserError, match="curvature is 1.0"):
        poincare_distance(x, y, curvature=1.0)
    with pytest.raises(UserError, match=r"shapes \(5, 3\) and \(4, 3\)"):
        poincare_distance(x, y[:4])


def test_hyperbolic_geometry_is_poincare_on_a_sphere(generator):
    x = torch.randn(20, 7, generator=generator, dtype=torch.float64)
    y = torch.randn(20, 7, generator=generator, dtype=torch.float64)
    for radius in (0.1, HYPERBOLIC_RADIUS, 0.999):
        on_sphere = [radius * t / t.norm(dim=1, keepdim=True) for t in (x, y)]
        expected = poincare_distance(*on_sphere)
        torch.testing.assert_close(paired_distances(x, y, "hyperbolic", radius), expected, rtol=1e-12, atol=0)


def test_hyperbolic_from_angle_is_the_increasing_map_of_the_geometry(generator):
    x = torch.randn(30, 4, generator=generator)
    angle, distance = reference_distances(x, geometry="spherical"), reference_distances(x, geometry="hyperbolic")
    torch.testing.assert_close(hyperbolic_from_angle(angle), distance, rtol=1e-13, atol=1e-15)
    grid = np.linspace(0, math.pi, 1001)
    mapped = hyperbolic_from_angle(grid, 0.5)
    assert mapped.dtype == np.float64 and mapped[0] == 0 and (np.diff(mapped) > 0).all()
    assert float(hyperbolic_from_angle(1.0)) == float(hyperbolic_from_angle(torch.tensor(1.0, dtype=torch.float64)))


@pytest.mark.parametrize("ratio", [1.0, 1.001, -3.1, 1000.0])
@pytest.mark.parametrize("separation", [1.0, 1e-2, 1e-5, 1e-8])
def test_paired_angles_against_extended_precision(separation, ratio, generator):
    x = torch.randn(40, 29, generator=generator, dtype=torch.float64)
    y = (x + separation * torch.randn(40, 29, generator=generator, dtype=torch.float64)) * ratio
    truth = extended_distances(x, y, "spherical").diagonal()
    found = paired_distances(x, y, "spherical")
    folded = np.minimum(truth, np.pi - truth) if ratio > 0 else truth  # small angles keep relative accuracy
    assert np.abs((found.numpy() - truth) / folded).max() < 1e-11
    assert torch.equal(found, paired_distances(y, x, "spherical"))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_paired_is_the_diagonal_of_the_reference(geometry, generator):
    x, y = torch.randn(13, 5, generator=generator), torch.randn(13, 5, generator=generator)
    reference = reference_distances(x, y, geometry)
    assert reference.dtype == torch.float64
    torch.testing.assert_close(paired_distances(x, y, geometry), reference.diagonal(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_reference_is_a_metric(geometry, generator):
    d = reference_distances(torch.randn(23, 6, generator=generator), geometry=geometry)
    assert (d.diagonal() == 0).all()
    torch.testing.assert_close(d, d.T, rtol=1e-14, atol=0)
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-12).all()


def test_paired_extremes_and_empty_shapes():
    huge = points((1e300, 1e300), (1e-300, 0))
    tilted = points((1e300, 1.0000001e300), (1e-300, 1e-305))
    found = paired_distances(huge, tilted, "spherical")
    assert float(found[0]) == pytest.approx(5e-8, rel=1e-6) and float(found[1]) == pytest.approx(1e-5, rel=1e-6)
    assert paired_distances(torch.zeros(0, 3), torch.zeros(0, 3), "hyperbolic").shape == (0,)
    assert reference_distances(torch.zeros(0, 3), torch.zeros(2, 3)).shape == (0, 2)


def test_bad_input_is_named():
    x = torch.ones(3, 2)
    x[2] = 0
    with pytest.raises(UserError, match="row 2 of y is zero and has no direction"):
        paired_distances(torch.ones(3, 2), x, "spherical")
    with pytest.raises(UserError, match="row 2 of x is zero"):
        reference_distances(x, geometry="hyperbolic")
    with pytest.raises(UserError, match="geometry is 'flat'; allowed: raw, spherical, hyperbolic"):
        reference_distances(x, geometry="flat")
    with pytest.raises(UserError, match="radius is 1.0; allowed: a number above 0 and below 1"):
        hyperbolic_from_angle(1.0, 1.0)
    with pytest.raises(UserError, match=r"shapes \(3, 2\) and \(2, 2\)"):
        paired_distances(x, x[:2])
