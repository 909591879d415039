"""Geometries that a module outside the package adds: the torch backend serves them, the compiled ones say why not."""

import math

import pytest
import torch

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, Geometry, paired_distances, reference_distances
from geowidth.ops import pairwise_distances
from geowidth.ops.distances.operation import OPERATION

MANHATTAN = Geometry("manhattan", False, "length", lambda x, y, _: (x[:, None] - y).abs().sum(-1))
CHORD = Geometry(
    "chord",
    True,
    "length",
    from_angle=lambda angle, _: 2 * torch.sin(angle / 2),
    slope=lambda angle, _: torch.cos(angle / 2),
)
COSINE = Geometry("cosine", True, "1", lambda x, y, _: 1 - x @ y.T)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(GEOMETRIES, "_items", dict(GEOMETRIES._items))
    for geometry in (MANHATTAN, CHORD, COSINE):
        GEOMETRIES.register(geometry)


@pytest.fixture
def clouds():
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (700, 7))


def truth(name, x, y):
    if name == "manhattan":
        return torch.cdist(x, y, p=1)
    u, v = (t / t.norm(dim=1, keepdim=True) for t in (x, y))
    return torch.cdist(u, v) if name == "chord" else 1 - u @ v.T


@pytest.mark.parametrize("name", ["manhattan", "chord", "cosine"])
def test_matrices_pairs_and_the_reference_agree_with_the_formula(name, clouds):
    x, y = clouds
    close = dict(rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pairwise_distances(x, y, geometry=name), truth(name, x, y), **close)
    torch.testing.assert_close(reference_distances(x, y, name), truth(name, x, y), **close)
    torch.testing.assert_close(paired_distances(x[:7], y, name), truth(name, x[:7], y).diagonal(), **close)
    torch.testing.assert_close(paired_distances(x, x.flip(0), name), truth(name, x, x.flip(0)).diagonal(), **close)
    square = pairwise_distances(x, geometry=name)
    assert torch.equal(square, square.T) and bool((square.diagonal() == 0).all())
    half = pairwise_distances(x.float(), geometry=name)
    torch.testing.assert_close(half.double(), square, rtol=1e-4, atol=1e-6)


def test_built_in_geometries_of_the_same_call_keep_their_bits(clouds):
    x, _ = clouds
    alone = pairwise_distances(x, geometry=("hyperbolic", "raw"))
    mixed = pairwise_distances(x, geometry=("manhattan", "hyperbolic", "chord", "raw"))
    assert list(mixed) == ["manhattan", "hyperbolic", "chord", "raw"]
    assert all(torch.equal(mixed[name], alone[name]) for name in alone)
    assert set(mixed) < set(pairwise_distances(x, geometry="all"))


@pytest.mark.parametrize(("device", "backend"), [("cpu", "native"), ("cuda", "cuda"), ("cuda", "triton")])
def test_compiled_backends_say_that_they_do_not_serve_it(device, backend):
    words = f"backend '{backend}' cannot serve pairwise_distances: .*raw, spherical, hyperbolic only, not for manhattan"
    with pytest.raises(UserError, match=words):
        OPERATION.choose(device, backend, dtype=torch.float64, geometries=("manhattan",))
    assert OPERATION.choose(device, dtype=torch.float64, geometries=("manhattan",)).name == "torch"


def test_extreme_rows_are_those_of_the_geometry(clouds):
    x = clouds[1].clone()
    x[2] *= 1e250
    x[4] *= 1e-250
    for name in ("manhattan", "chord"):
        torch.testing.assert_close(pairwise_distances(x, geometry=name), reference_distances(x, geometry=name))
        torch.testing.assert_close(pairwise_distances(x, x, geometry=name), reference_distances(x, geometry=name))


def test_zero_rows_are_refused_by_directional_geometries_only(clouds):
    x = clouds[1].clone()
    x[3] = 0
    assert pairwise_distances(x, geometry="manhattan").isfinite().all()
    for name in ("chord", "cosine"):
        with pytest.raises(UserError, match="row 3 of x is zero"):
            pairwise_distances(x, geometry=name)


def test_gradients_follow_the_angle_and_are_refused_elsewhere(clouds):
    x = clouds[1].clone().requires_grad_()
    weights = torch.rand(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = pairwise_distances(x, geometry=("chord", "spherical"))
    (sum((weights * m).sum() for m in found.values())).backward()
    again = clouds[1].clone().requires_grad_()
    u = again / again.norm(dim=1, keepdim=True)
    off = ~torch.eye(7, dtype=bool)
    cosine = (u @ u.T)[off]
    (weights[off] * (torch.sqrt(2 - 2 * cosine) + torch.acos(cosine))).sum().backward()
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-9, atol=1e-12)
    with pytest.raises(UserError, match="'manhattan' have no gradient here"):
        pairwise_distances(x, geometry=("raw", "manhattan"))
    assert pairwise_distances(x.detach(), geometry="manhattan").isfinite().all()


def test_a_map_of_numpy_functions_serves_on_the_cpu(clouds):
    import numpy as np

    name, x = "numpy_chord", clouds[1]
    GEOMETRIES.register(
        Geometry(name, True, "length", from_angle=lambda a, _: torch.from_numpy(2 * np.sin(a.numpy() / 2)))
    )
    torch.testing.assert_close(pairwise_distances(x, geometry=name), truth("chord", x, x))
    with pytest.raises(UserError, match="'numpy_chord' have no gradient here"):
        pairwise_distances(x.clone().requires_grad_(), geometry=name)


def test_what_a_geometry_must_be(clouds):
    x, y = clouds
    with pytest.raises(UserError, match="neither pairwise nor from_angle"):
        Geometry("empty", True, "length")
    with pytest.raises(UserError, match="not directional"):
        Geometry("odd", False, "length", from_angle=math.sin)
    with pytest.raises(UserError, match="slope without from_angle"):
        Geometry("odd", True, "length", lambda x, y, _: x @ y.T, slope=math.cos)
    with pytest.raises(UserError, match="there is a geometry 'raw' already"):
        GEOMETRIES.register(Geometry("raw", False, "length", lambda x, y, _: x @ y.T))
    for wrong in (lambda x, y, _: (x[:, None] - y).sum(-1).float(), lambda x, y, _: x[:, 0], lambda x, y, _: 3.0):
        GEOMETRIES._items.pop("wrong", None)
        GEOMETRIES.register(Geometry("wrong", False, "length", wrong))
        with pytest.raises(UserError, match=r"pairwise of the geometry 'wrong' gave .*; needed: a float64 tensor"):
            pairwise_distances(x, y, geometry="wrong")
