"""Degree-one persistence against gudhi bit for bit, and against theorems."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from geowidth.errors import UserError
from geowidth.measure import diagram_distance, persistence_diagram

ROOT = Path(__file__).resolve().parents[2]


def symmetric(upper):
    """The symmetric matrix with the strictly upper triangle of `upper` and a zero diagonal."""
    matrix = np.zeros(upper.shape)
    i, j = np.triu_indices(len(upper), 1)
    matrix[i, j] = matrix[j, i] = upper[i, j]
    return matrix


def random_matrix(kind, rng):
    """A small distance matrix of an awkward kind."""
    n = int(rng.integers(4, 48))
    if kind == "few values":
        return symmetric(rng.integers(1, 6, (n, n)))
    if kind == "values and zeros":
        return symmetric(rng.integers(0, 12, (n, n)))
    if kind == "no metric":
        return symmetric(rng.random((n, n)))
    if kind == "missing edges":
        return symmetric(np.where(rng.random((n, n)) < rng.random(), np.inf, rng.random((n, n))))
    points = rng.integers(0, 5, (n, 2)) if kind == "grid" else rng.standard_normal((n, int(rng.integers(1, 9))))
    if kind == "duplicates":
        points = points[rng.integers(0, n, n)]
    return symmetric(cdist(points, points))


KINDS = ("few values", "values and zeros", "no metric", "missing edges", "grid", "duplicates", "metric")


def gudhi_diagram(matrix, threshold=math.inf):
    """gudhi's own ripser, float64, bars of positive length in order."""
    from gudhi._ripser_ext import _full

    limit = min(threshold, float(matrix.max(1).min()), 1e300)
    bars = np.asarray(_full(matrix, max_dimension=1, max_edge_length=limit, homology_coeff_field=2)[1], float)
    bars = bars.reshape(-1, 2)
    bars = bars[bars[:, 0] < bars[:, 1]]
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


def angles(n):
    """Spherical distances of n standard normal points: many classes alive at once."""
    points = np.random.default_rng(n).standard_normal((n, 24))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return 2 * np.arcsin(np.minimum(cdist(points, points) / 2, 1))


def polygon(n, radius=1.0):
    turn = 2 * np.pi * np.arange(n) / n
    # Chords by the index difference alone, so that equal chords are equal numbers.
    step = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return 2 * radius * np.sin(turn[1] * np.minimum(step, n - step) / 2)


# ---------------------------------------------------------------- diagrams


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_gudhi_bit_for_bit(kind):
    bars = 0
    for seed in range(300):
        rng = np.random.default_rng([KINDS.index(kind), seed])
        matrix = random_matrix(kind, rng)
        threshold = math.inf if seed % 3 else float(np.quantile(matrix[np.isfinite(matrix)], 0.6))
        expected = gudhi_diagram(matrix, threshold)
        found = persistence_diagram(matrix, threshold)
        assert np.array_equal(found, expected), (kind, seed)
        bars += len(expected)
    assert bars > 300


@pytest.mark.parametrize("n", [151, 257, 400])
def test_equal_to_gudhi_on_larger_clouds(n):
    rng = np.random.default_rng(n)
    points = rng.standard_normal((n // 8, 12))[rng.integers(0, n // 8, n)] + 0.6 * rng.standard_normal((n, 12))
    matrix = symmetric(cdist(points, points))
    assert np.array_equal(persistence_diagram(matrix), gudhi_diagram(matrix))


def test_equal_to_gudhi_with_many_living_classes():
    matrix = symmetric(angles(120))
    expected = gudhi_diagram(matrix)
    assert len(expected) > 100
    assert np.array_equal(persistence_diagram(matrix), expected)


def test_equal_to_the_simplex_tree():
    import gudhi

    matrix = random_matrix("no metric", np.random.default_rng(5))
    tree = gudhi.RipsComplex(distance_matrix=matrix).create_simplex_tree(2)
    tree.compute_persistence(homology_coeff_field=2)
    expected = tree.persistence_intervals_in_dimension(1)
    assert np.array_equal(persistence_diagram(matrix), expected[np.lexsort((expected[:, 1], expected[:, 0]))])


@pytest.mark.parametrize("n", range(4))
def test_no_loop_in_fewer_than_four_points(n):
    for matrix in (np.ones((n, n)) - np.eye(n), np.zeros((n, n))):
        diagram = persistence_diagram(matrix)
        assert diagram.shape == (0, 2) and diagram.dtype == np.float64


@pytest.mark.parametrize("n", [4, 5, 6, 7, 12, 30, 61])
def test_regular_polygon(n):
    # One loop: born with the sides, filled by the shortest chords three of which go round (Adamaszek and Adams 2017).
    matrix = polygon(n)
    expected = [[matrix[0, 1], matrix[0, math.ceil(n / 3)]]]
    assert np.array_equal(persistence_diagram(matrix), expected)


def test_cut_polygon_has_an_endless_bar():
    whole, cut = persistence_diagram(polygon(12)), persistence_diagram(polygon(12), threshold=1.0)
    assert whole == pytest.approx(np.array([[0.5176381, 1.7320508]]), abs=1e-7)
    assert cut[0, 0] == whole[0, 0] and cut[0, 1] == math.inf
    assert diagram_distance(whole, cut) == math.inf
    assert persistence_diagram(polygon(12), threshold=0.5).shape == (0, 2)


@pytest.mark.parametrize("diagonal, death", [(math.inf, math.inf), (3.5, 3.5)])
def test_four_cycle(diagonal, death):
    matrix = np.array([[0, 2, diagonal, 3], [2, 0, 3, diagonal], [diagonal, 3, 0, 2], [3, diagonal, 2, 0]])
    assert persistence_diagram(matrix).tolist() == [[3, death]]


def test_unit_square_and_its_ties():
    corners = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    assert persistence_diagram(cdist(corners, corners)).tolist() == [[1, math.sqrt(2)]]


def test_noisy_loop_in_a_thousand_dimensions():
    rng = np.random.default_rng(0)
    turn = 2 * np.pi * np.arange(180) / 180
    points = 0.01 * rng.standard_normal((180, 1000))
    points[:, :2] += 3 * np.stack([np.cos(turn), np.sin(turn)], 1)
    diagram = persistence_diagram(symmetric(cdist(points, points)))
    length = np.sort(diagram[:, 1] - diagram[:, 0])
    assert length[-1] > 4 and (len(length) == 1 or length[-2] < 0.5)


def test_more_ties_than_one_stretch_of_edges_holds():
    # 300 points at one common distance, with a square on top: one length alone overflows a stretch.
    matrix = np.full((300, 300), 1.0)
    np.fill_diagonal(matrix, 0)
    matrix[:, :4] = matrix[:4, :] = 4.0
    matrix[:4, :4] = [[0, 2, 3, 2], [2, 0, 2, 3], [3, 2, 0, 2], [2, 3, 2, 0]]
    assert persistence_diagram(matrix).tolist() == [[2, 3]] and np.array_equal(gudhi_diagram(matrix), [[2, 3]])
    grid = np.stack(np.meshgrid(range(18), range(18)), -1).reshape(-1, 2)
    matrix = symmetric(np.abs(grid[:, None] - grid[None]).sum(-1))
    assert persistence_diagram(matrix).tolist() == gudhi_diagram(matrix).tolist() == [[1, 2]] * 289


@pytest.mark.parametrize("kind", ["no metric", "metric", "grid"])
def test_relabelling_scaling_and_monotone_maps(kind, rng):
    matrix = random_matrix(kind, rng)
    diagram = persistence_diagram(matrix)
    order = rng.permutation(len(matrix))
    assert np.array_equal(persistence_diagram(matrix[np.ix_(order, order)]), diagram)
    for factor in (2.0**-60, 2.0**400):
        assert np.array_equal(persistence_diagram(matrix * factor), diagram * factor)
    assert np.array_equal(persistence_diagram(np.sinh(matrix)), np.sinh(diagram))


def test_two_distant_clouds_have_both_diagrams(rng):
    a, b = polygon(9), random_matrix("no metric", rng)
    both = np.full((len(a) + len(b),) * 2, math.inf)
    both[:9, :9], both[9:, 9:] = a, b
    expected = np.concatenate([persistence_diagram(a), persistence_diagram(b)])
    assert np.array_equal(persistence_diagram(both), expected[np.lexsort((expected[:, 1], expected[:, 0]))])


@pytest.mark.parametrize("value, scale", [(1e-300, 1e-300), (1.0, 1e305), (5e-324, 5e-324)])
def test_extreme_magnitudes(value, scale):
    matrix = symmetric(np.ones((6, 6)) * scale * 3)
    for i in range(5):
        matrix[i, i + 1] = matrix[i + 1, i] = value
    matrix[0, 5] = matrix[5, 0] = value
    assert persistence_diagram(matrix).tolist() == [[value, scale * 3]]


def test_dtypes_strides_and_untouched_input():
    matrix = np.random.default_rng(3).integers(1, 9, (20, 20))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    expected = persistence_diagram(matrix.astype(float))
    wide = np.zeros((40, 60))
    wide[::2, ::3] = matrix
    kept = wide.copy()
    assert np.array_equal(persistence_diagram(wide[::2, ::3]), expected) and np.array_equal(wide, kept)
    for dtype in (np.float32, np.float16, np.int64, np.uint8):
        assert np.array_equal(persistence_diagram(matrix.astype(dtype)), expected)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int32):
        assert np.array_equal(persistence_diagram(torch.tensor(matrix).to(dtype).requires_grad_(False)), expected)
    assert np.array_equal(persistence_diagram(np.asfortranarray(matrix, float)), expected)


@pytest.mark.parametrize(
    "change, cell",
    [
        (lambda m: m.__setitem__((2, 5), math.nan), "distances[2, 5] is nan"),
        (lambda m: m.__setitem__((3, 3), 0.1), "distances[3, 3] is 0.1; the diagonal"),
        (lambda m: (m.__setitem__((1, 4), -0.2), m.__setitem__((4, 1), -0.2)), "distances[1, 4] is -0.2"),
        (lambda m: m.__setitem__((6, 2), 9.0), "distances[2, 6] is 4.0 but [6, 2] is 9.0"),
    ],
)
def test_bad_entries_are_named(change, cell):
    matrix = np.abs(np.subtract.outer(np.arange(8.0), np.arange(8.0)))
    change(matrix)
    with pytest.raises(UserError) as refusal:
        persistence_diagram(matrix)
    assert cell in str(refusal.value)
    persistence_diagram(matrix, validate=False)  # unchecked, it ends all the same


def test_bad_shapes_and_thresholds():
    for bad in (np.zeros((3, 4)), np.zeros(9), np.zeros((2, 2), complex), [["a"]], None):
        with pytest.raises(UserError):
            persistence_diagram(bad)
    for bad in (math.nan, -1, "far"):
        with pytest.raises(UserError, match="threshold"):
            persistence_diagram(np.zeros((5, 5)), threshold=bad)


def test_layers_run_in_threads():
    matrices = [symmetric(angles(n)) for n in (40, 61, 83, 100)]
    expected = [persistence_diagram(m) for m in matrices]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(persistence_diagram, matrices * 3))
    assert all(np.array_equal(f, e) for f, e in zip(found, expected * 3, strict=True))


SCRIPT = """
import hashlib
import numpy as np
from geowidth import _native
digest = hashlib.sha256()
for seed in range(40):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 70))
    x = rng.standard_normal((n, 3)) if seed % 2 else rng.integers(0, 4, (n, 2)).astype(float)
    m = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    digest.update(_native.degree_one_persistence(m, np.inf).tobytes())
print(_native.build_information()["variant"], digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    outputs = {}
    for variant in ("portable", "avx2", "avx512"):
        environment = dict(os.environ, GEOWIDTH_CPU_VARIANT=variant)
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        name, digest = run.stdout.split()
        outputs[name] = digest
    assert "portable" in outputs and len(set(outputs.values())) == 1
