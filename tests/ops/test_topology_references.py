"""Persistence, diagram distance and dimension against their plain references, every backend."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from geowidth.errors import UserError
from geowidth.ops import diagram_distance, diagram_matching, intrinsic_dimension, persistence_diagram
from geowidth.ops.diagrams import diagram_distance_reference
from geowidth.ops.dimension import dimension_reference
from geowidth.ops.persistence import persistence_reference


def matrix(seed, kind):
    rng = np.random.default_rng(seed)
    n = (0, 1, 2, 3, 5, 11, 17)[seed % 7]
    if kind == "metric":
        points = rng.standard_normal((n, 3))
        return cdist(points, points)
    values = rng.integers(1, 6, (n, n)).astype(float) if kind == "ties" else rng.random((n, n))
    if kind == "missing":
        values[rng.random((n, n)) < 0.4] = np.inf
    upper = np.triu(values, 1)
    return upper + upper.T


@pytest.mark.parametrize("kind", ["metric", "ties", "general", "missing"])
def test_persistence_is_the_reduction_of_the_boundary_matrix(kind):
    bars = 0
    for seed in range(42):
        distances = matrix(seed, kind)
        found = persistence_diagram(distances, backend="native")
        assert np.array_equal(found, persistence_reference(distances)), (kind, seed)
        bars += len(found)
        limit = 0.6 * float(distances[np.isfinite(distances)].max(initial=0))
        assert np.array_equal(persistence_diagram(distances, limit), persistence_reference(distances, limit))
    assert bars > 20


@pytest.mark.parametrize("backend", ["native", "scipy"])
@pytest.mark.parametrize("ground", ["sup", "euclidean"])
def test_diagram_distances_are_the_assignments(backend, ground):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        a, b = (np.cumsum(rng.integers(0, 4, (int(rng.integers(0, 12)), 2)), 1).astype(float) for _ in range(2))
        if seed % 4 == 0:
            a, b = (np.vstack([bars, [[float(seed), np.inf]]]) for bars in (a, b + 0.25))
        expected = diagram_distance_reference(a, b, ground)
        assert diagram_distance(a, b, ground=ground, backend=backend) == pytest.approx(expected, rel=1e-12, abs=1e-14)
        found = diagram_matching(a, b, ground=ground, backend=backend)
        assert found.distance == pytest.approx(math.sqrt((found.lengths**2).sum()), rel=1e-12, abs=1e-14)
    assert diagram_distance([[0, np.inf]], np.zeros((0, 2)), backend=backend) == math.inf
    assert diagram_distance([[0, 3e200]], [[0, 2e200]], backend=backend) == pytest.approx(1e200, rel=1e-12)


@pytest.mark.parametrize(("points", "k"), [(5, 3), (11, 4), (101, 20)])
def test_dimension_is_the_formulas_point_by_point(points, k):
    cloud = np.random.default_rng(points).standard_normal((points, 3))
    distances = cdist(cloud, cloud)
    found = intrinsic_dimension(distances, k=k, backend="numpy").values
    assert found == pytest.approx(dimension_reference(distances, k), rel=1e-11)


def test_backends_that_are_not_there_are_refused():
    with pytest.raises(UserError, match="backend of persistence on cpu is 'cuda'; allowed: native"):
        persistence_diagram(np.zeros((3, 3)), backend="cuda")
    with pytest.raises(UserError, match="backend of diagram_distance on cpu is 'torch'; allowed: native, scipy"):
        diagram_distance([[0, 1]], [[0, 1]], backend="torch")
    points = cdist(*[np.random.default_rng(0).random((9, 2))] * 2)
    with pytest.raises(UserError, match="backend of dimension on cpu is 'native'; allowed: numpy"):
        intrinsic_dimension(points, k=3, backend="native")
