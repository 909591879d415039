"""Gradients of pairwise_distances: finite differences, the pairs that have none, near-duplicates, dtypes."""

import pytest
import torch

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES
from geowidth.ops import pairwise_distances


@pytest.mark.parametrize("geometry", ["raw", "hyperbolic", "all"])
def test_gradients_are_those_of_finite_differences(compute, generator, geometry):
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)

    def rectangle(a, b):
        found = compute(a, b, geometry=geometry)
        return tuple(found.values()) if geometry == "all" else found

    def triangle(a):
        found = compute(a, geometry=geometry)
        return tuple(v.triu(1) for v in found.values()) if geometry == "all" else found.triu(1)

    assert torch.autograd.gradcheck(rectangle, (x, y))
    assert torch.autograd.gradcheck(triangle, (x,))


def test_registration_is_sound(generator):
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    for arguments in ((x, y), (x, None)):
        torch.library.opcheck(
            torch.ops.geowidth.pairwise_distances.default, (*arguments, "raw,spherical,hyperbolic", 0.7, "native", 1)
        )


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_pairs_at_distance_zero_have_no_gradient(compute, geometry):
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0]], requires_grad=True)
    compute(x[:2], geometry=geometry).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    compute(x[:1], x[1:2], geometry=geometry).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    if geometry != "raw":  # exactly opposite directions: the angle has its peak there
        compute(x[:1], x[2:], geometry=geometry).sum().backward()
        assert torch.equal(x.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("separation", [1e-3, 1e-6, 1e-9])
def test_gradients_of_near_duplicates_keep_their_direction(compute, generator, separation):
    y = torch.randn(1, 31, generator=generator, dtype=torch.float64)
    step = torch.randn(1, 31, generator=generator, dtype=torch.float64)
    x = (y + separation * step).requires_grad_()
    (raw,) = torch.autograd.grad(compute(x, y).sum(), x)
    difference = x.detach() - y
    torch.testing.assert_close(raw, difference / difference.norm(), rtol=1e-9, atol=1e-12)
    (angular,) = torch.autograd.grad(compute(x, y, geometry="spherical").sum(), x)
    u = (x / x.norm()).detach()
    tangent = difference - (difference * u).sum() * u
    torch.testing.assert_close(angular, tangent / tangent.norm() / x.detach().norm(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_arrive_in_the_dtype_of_the_input(compute, generator, dtype):
    x = torch.randn(9, 5, generator=generator).to(dtype).requires_grad_()
    compute(x, geometry="all")["hyperbolic"].sum().backward()
    wide = x.detach().double().requires_grad_()
    compute(wide, geometry="hyperbolic").sum().backward()
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_only_the_gradient_that_is_wanted(compute, generator):
    x, y = torch.randn(5, 3, generator=generator, requires_grad=True), torch.randn(4, 3, generator=generator)
    compute(x, y).sum().backward()
    assert x.grad.shape == (5, 3) and y.grad is None


def test_second_derivatives_are_refused(generator):
    x = torch.randn(5, 3, generator=generator, requires_grad=True)
    (gradient,) = torch.autograd.grad(pairwise_distances(x).sum(), x, create_graph=True)
    with pytest.raises(UserError, match="differentiable once"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calls_without_a_gradient_and_the_custom_op_give_the_same_bits(dtype):
    """Calls that record nothing go past the dispatcher; those with a gradient do not."""
    x = torch.randn(19, 7, generator=torch.Generator().manual_seed(4)).to(dtype)
    direct = pairwise_distances(x, geometry="all")
    recorded = pairwise_distances(x.clone().requires_grad_(), geometry="all")
    for name in direct:
        assert recorded[name].requires_grad and not direct[name].requires_grad
        assert torch.equal(direct[name], recorded[name].detach())
