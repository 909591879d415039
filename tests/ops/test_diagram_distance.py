"""The 2-Wasserstein distance between persistence diagrams, against scipy's assignment and what a metric must obey."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from test_persistence import angles

from geowidth.errors import UserError
from geowidth.measure import diagram_distance, persistence_diagram


def assignment_distance(a, b, ground):
    """scipy's assignment on the square problem, every bar with a place on the diagonal."""
    difference = np.abs(a[:, None] - b[None])
    cost = difference.max(-1) ** 2 if ground == "sup" else (difference**2).sum(-1)
    diagonal_a, diagonal_b = ((d[:, 1] - d[:, 0]) ** 2 * (0.25 if ground == "sup" else 0.5) for d in (a, b))
    n, m = len(a), len(b)
    square = np.zeros((n + m, n + m))
    square[:n, :m] = cost
    square[:n, m:] = diagonal_a[:, None]
    square[n:, :m] = diagonal_b[None]
    rows, columns = linear_sum_assignment(square)
    return math.sqrt(square[rows, columns].sum())


def random_diagram(rng, size, kind):
    if kind == "ties":
        return rng.integers(0, 5, (size, 2)).cumsum(1).astype(float)
    births = rng.random(size) if kind == "spread" else np.full(size, 0.5)
    lengths = rng.exponential(0.2, size) * np.where(rng.random(size) < 0.1, 20, 1)
    return np.stack([births, births + lengths], 1)


@pytest.mark.parametrize("ground", ["sup", "euclidean"])
@pytest.mark.parametrize("kind", ["spread", "one birth", "ties"])
def test_equal_to_the_assignment(kind, ground):
    for seed in range(120):
        rng = np.random.default_rng(seed)
        a, b = (random_diagram(rng, int(rng.integers(0, 40)), kind) for _ in range(2))
        expected = assignment_distance(a, b, ground)
        assert diagram_distance(a, b, ground=ground) == pytest.approx(expected, rel=1e-12, abs=1e-300)
        assert diagram_distance(b, a, ground=ground) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("ground", ["sup", "euclidean"])
def test_equal_to_the_assignment_on_real_sizes(ground):
    rng = np.random.default_rng(0)
    a, b = random_diagram(rng, 331, "spread"), random_diagram(rng, 293, "spread")
    assert diagram_distance(a, b, ground=ground) == pytest.approx(assignment_distance(a, b, ground), rel=1e-12)


def test_equal_to_the_assignment_where_most_pairs_are_worthwhile():
    # Directions without clusters: thousands of bars side by side, and which pairs matter only the potentials tell.
    a, b = persistence_diagram(angles(150)), persistence_diagram(angles(151))
    assert min(len(a), len(b)) > 300
    for ground in ("sup", "euclidean"):
        expected = assignment_distance(a, b, ground)
        assert diagram_distance(a, b, ground=ground) == pytest.approx(expected, rel=1e-12)
        assert diagram_distance(b, a, ground=ground) == pytest.approx(expected, rel=1e-12)


def test_thousands_of_bars_side_by_side():
    clouds = [np.random.default_rng(seed).standard_normal((400, 256)) for seed in (0, 1)]
    clouds = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in clouds]
    a, b = (persistence_diagram(2 * np.arcsin(np.minimum(cdist(x, x) / 2, 1)), validate=False) for x in clouds)
    assert min(len(a), len(b)) > 2000
    assert diagram_distance(a, b) == pytest.approx(diagram_distance(b, a), rel=1e-12)


@pytest.mark.parametrize("ground, left_over", [("sup", 0.25), ("euclidean", 0.5)])
def test_thousands_of_equal_bars(ground, left_over):
    a, b = np.tile([1.0, 2.0], (2000, 1)), np.tile([1.0, 2.5], (1500, 1))
    expected = math.sqrt(1500 * 0.25 + 500 * left_over)
    assert diagram_distance(a, b, ground=ground) == pytest.approx(expected, rel=1e-12)


def test_equal_diagrams_in_any_order_are_at_distance_zero(rng):
    for kind in ("spread", "one birth", "ties"):
        a = random_diagram(rng, 200, kind)
        on_diagonal = np.repeat(rng.random((7, 1)), 2, 1)
        assert diagram_distance(a, rng.permutation(np.concatenate([a, on_diagonal]))) == 0
    assert diagram_distance(np.empty((0, 2)), []) == 0


@pytest.mark.parametrize("ground, factor", [("sup", 0.5), ("euclidean", math.sqrt(0.5))])
def test_against_the_empty_diagram(ground, factor, rng):
    a = random_diagram(rng, 50, "spread")
    expected = factor * np.linalg.norm(a[:, 1] - a[:, 0])
    assert diagram_distance(a, np.empty((0, 2)), ground=ground) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shift", [1e-3, 1e-9, 1e-13])
def test_nearly_equal_diagrams(shift, rng):
    # Each bar's own image is its best match: the distance is known whatever the rounding of gains.
    births = np.arange(300) * 0.01
    a = np.stack([births, births + 0.5 + rng.random(300)], 1)
    b = a + shift * rng.random((300, 2))
    b = np.stack([b[:, 0], np.maximum(b[:, 1], b[:, 0])], 1)
    expected = math.sqrt((np.abs(a - b).max(1) ** 2).sum())
    assert diagram_distance(a, rng.permutation(b)) == pytest.approx(expected, rel=1e-12)


def test_one_bar_far_out_does_not_blur_the_others(rng):
    a, b = random_diagram(rng, 60, "spread"), random_diagram(rng, 50, "spread")
    for far in (1e3, 1e8, 1e12):
        # Two long bars whose better pairing is told apart by hundredths only.
        extended = [np.concatenate([a, [[0.1, far], [0.3, far]]]), np.concatenate([b, [[0.31, far], [0.12, far]]])]
        together = diagram_distance(*extended)
        assert together == pytest.approx(math.hypot(diagram_distance(a, b), 0.02, 0.01), rel=1e-11)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_scaling_never_overflows(scale, rng):
    a, b = random_diagram(rng, 30, "spread"), random_diagram(rng, 20, "spread")
    assert diagram_distance(a * scale, b * scale) == pytest.approx(diagram_distance(a, b) * scale, rel=1e-12)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7), st.integers(0, 2**20))
def test_metric_axioms(bars, seed):
    rng = np.random.default_rng(seed)
    a = np.array([(b, b + length) for b, length in bars], float).reshape(-1, 2)
    b, c = (random_diagram(rng, int(rng.integers(0, 8)), "ties") for _ in range(2))
    ab, bc, ac = diagram_distance(a, b), diagram_distance(b, c), diagram_distance(a, c)
    assert ab >= 0 and ab == pytest.approx(diagram_distance(b, a), rel=1e-14)
    assert ac <= (ab + bc) * (1 + 1e-12)


def test_bars_that_never_die():
    inf = math.inf
    a, b = [(1, inf), (2, 3)], [(1, 4), (2, 3)]
    assert diagram_distance(a, b) == inf and diagram_distance(a, a) == 0
    assert diagram_distance([(1, inf)], [(1.5, inf)]) == 0.5
    assert diagram_distance([(1, inf), (4, inf)], [(4.25, inf), (1, inf)]) == 0.25
    assert diagram_distance([(0, inf), (2, 3)], [(3, inf), (2, 7)]) == pytest.approx(
        math.hypot(3, diagram_distance([(2, 3)], [(2, 7)]))
    )


@pytest.mark.parametrize(
    "bad", [[(1, math.nan)], [(math.nan, 1)], [(2, 1)], [(math.inf, math.inf)], [(-math.inf, 1)], [(1, 2, 3)], "bars"]
)
def test_bad_diagrams_are_refused(bad):
    good = [(0, 1)]
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(UserError):
            diagram_distance(*pair)


def test_bad_options_are_refused():
    with pytest.raises(UserError, match="order"):
        diagram_distance([], [], order=1)
    with pytest.raises(UserError, match="ground"):
        diagram_distance([], [], ground="taxicab")
