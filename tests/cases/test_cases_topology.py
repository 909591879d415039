"""Persistence diagrams and their distance: cases C1 and C3."""

import math

import numpy as np
import pytest

from geowidth.errors import UserError
from geowidth.measure import diagram_distance, persistence_diagram

INF = math.inf


def bars(*pairs):
    return np.array(pairs, dtype=float).reshape(-1, 2)


def cycle(sides, diagonal):
    """Four points in a cycle of the given sides, both diagonals of one length."""
    matrix = np.zeros((4, 4))
    for i, side in enumerate(sides):
        matrix[i, (i + 1) % 4] = matrix[(i + 1) % 4, i] = side
    for i in (0, 1):
        matrix[i, i + 2] = matrix[i + 2, i] = diagonal
    return matrix


def polygon(corners):
    turns = 2 * np.pi * np.arange(corners) / corners
    points = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    matrix = np.linalg.norm(points[:, None] - points, axis=2)
    return (matrix + matrix.T) / 2


def test_C1_bars_that_never_die_are_matched_to_such_bars_only():
    a, b = bars((1, INF), (2, 3)), bars((1, 4), (2, 3))
    assert diagram_distance(a, b) == INF
    assert diagram_distance(a, a) == 0
    assert diagram_distance(bars((1, INF)), bars((1.5, INF))) == 0.5
    assert diagram_distance(bars((1, INF)), bars()) == INF
    endless = diagram_distance(bars((1, INF), (5, INF), (2, 3)), bars((1.5, INF), (5.25, INF), (2, 3.1)))
    assert endless == pytest.approx(math.hypot(0.5, 0.25, 0.1), rel=1e-12)


def test_C1_a_cut_off_leaves_an_endless_bar():
    distances = polygon(12)
    whole, cut = persistence_diagram(distances), persistence_diagram(distances, threshold=1.0)
    np.testing.assert_allclose(whole, bars((0.5176381, 1.7320508)), atol=1e-7)
    np.testing.assert_allclose(cut, bars((0.5176381, INF)), atol=1e-7)
    assert diagram_distance(whole, cut) == INF


def test_C1_a_late_death_is_a_finite_one():
    late = bars((0.5, 1e16), (2, 3))
    assert diagram_distance(late, bars((0.5, 1e16), (2, 3.5))) == 0.5
    assert math.isfinite(diagram_distance(late, bars((2, 3))))


def test_C3_missing_edges_and_diagonals_that_are_no_metric():
    np.testing.assert_array_equal(persistence_diagram(cycle((2, 3, 2, 3), INF)), bars((3, INF)))
    np.testing.assert_array_equal(persistence_diagram(cycle((2, 3, 2, 3), 3.5)), bars((3, 3.5)))
    np.testing.assert_array_equal(persistence_diagram(cycle((1, 1, 1, 1), math.sqrt(2))), bars((1, math.sqrt(2))))


def test_C3_ties_make_no_bars_of_length_zero():
    for matrix in (np.ones((7, 7)) - np.eye(7), cycle((1, 1, 1, 1), 1.0), polygon(8).round(1)):
        found = persistence_diagram(matrix)
        assert (found[:, 0] < found[:, 1]).all()
    assert len(persistence_diagram(np.ones((7, 7)) - np.eye(7))) == 0


@pytest.mark.parametrize(
    ("cell", "value", "words"),
    [((2, 2), 0.1, r"\[2, 2\] is 0.1.*diagonal"), ((0, 1), -0.2, r"\[0, 1\] is -0.2.*negative")],
)
def test_C3_untidy_matrices_are_refused_by_cell(cell, value, words):
    matrix = cycle((1, 1, 1, 1), math.sqrt(2))
    matrix[cell] = matrix[cell[::-1]] = value
    with pytest.raises(UserError, match=words):
        persistence_diagram(matrix)


def test_C3_asymmetry_and_nan_are_refused_by_cell():
    matrix = cycle((1, 1, 1, 1), math.sqrt(2))
    matrix[1, 3] += 0.25
    with pytest.raises(UserError, match=r"\[1, 3\] is .* but \[3, 1\] is .*symmetric"):
        persistence_diagram(matrix)
    matrix[1, 3] = matrix[3, 1] = math.nan
    with pytest.raises(UserError, match=r"\[1, 3\] is nan"):
        persistence_diagram(matrix)


def test_C3_a_noisy_loop_in_a_thousand_dimensions_is_one_long_bar(rng):
    turns = 2 * np.pi * np.arange(180) / 180
    points = 0.004 * rng.standard_normal((180, 1000))
    points[:, 0] += np.cos(turns)
    points[:, 1] += np.sin(turns)
    difference = points[:, None] - points
    lengths = np.diff(persistence_diagram(np.sqrt((difference**2).sum(axis=2))), axis=1)[:, 0]
    assert (lengths > 1).sum() == 1 and (lengths > 0.2).sum() == 1
