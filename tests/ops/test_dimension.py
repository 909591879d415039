"""Intrinsic dimension: hand-made cases, scikit-dimension where conventions agree, clouds of known dimension."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from geowidth.errors import UserError
from geowidth.measure import intrinsic_dimension, merge_duplicates
from geowidth.ops.dimension import ESTIMATORS


def distances(points):
    points = np.asarray(points, float)
    return cdist(points, points)


LINE = distances([[0], [1], [3]])  # ratios 3, 2, 1.5


@pytest.mark.parametrize(
    "name, value",
    [("twonn_mle", 0.9102392), ("twonn_fit", 1.4358298), ("mle", 1.3653588), ("twonn_mle", 2 / math.log(9))],
)
def test_three_points_on_a_line(name, value):
    assert intrinsic_dimension(LINE, k=2, estimators=(name,)).values[name] == pytest.approx(value, abs=1e-7)


def test_mean_of_inverses_by_hand():
    # k = 3 needs four points: 0, 1, 3, 7 on a line; S = sum over the two nearer of log(T_3 / T_j).
    nearest = np.array([[1, 3, 7], [1, 2, 6], [2, 3, 4], [4, 6, 7.0]])
    sums = np.log(nearest[:, 2:] / nearest[:, :2]).sum(1)
    found = intrinsic_dimension(distances([[0], [1], [3], [7]]), k=3).values
    assert found["mle_mean"] == pytest.approx(np.mean(1 / sums), rel=1e-14)
    assert found["mle"] == pytest.approx(4 * 2 / sums.sum(), rel=1e-14)


@pytest.mark.parametrize("seed, n, d", [(1, 300, 3), (2, 157, 20), (3, 101, 2)])
def test_agrees_with_scikit_dimension(seed, n, d):
    skdim = pytest.importorskip("skdim")
    points = np.random.default_rng(seed).random((n, d))
    found = intrinsic_dimension(distances(points), k=20).values
    fit = skdim.id.TwoNN(discard_fraction=0.1).fit(points).dimension_
    assert found["twonn_fit"] == pytest.approx(fit, rel=1e-10)
    model = skdim.id.MLE(K=20, n=None, unbiased=True).fit(points)
    assert found["mle_mean"] == pytest.approx(np.mean(model.dimension_pw_), rel=1e-10)
    biased = skdim.id.MLE(K=20, unbiased=False).fit(points)
    assert found["mle"] == pytest.approx(1 / np.mean(1 / biased.dimension_pw_), rel=1e-10)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_known_dimension_in_many_ambient_ones(d, rng):
    rotation = np.linalg.qr(rng.standard_normal((40, d)))[0]
    found = intrinsic_dimension(distances(rng.random((1500, d)) @ rotation.T)).values
    for name in ESTIMATORS:
        assert found[name] == pytest.approx(d, rel=0.12), name


def test_scale_and_order_of_points_change_nothing(rng):
    matrix = distances(rng.standard_normal((80, 4)))
    expected = intrinsic_dimension(matrix).values
    order = rng.permutation(80)
    for changed in (matrix * 1e-150, matrix * 1e150, matrix[np.ix_(order, order)]):
        assert intrinsic_dimension(changed).values == pytest.approx(expected, rel=1e-12)


def test_repeated_points_are_merged_and_counted(rng):
    points = rng.standard_normal((60, 5))
    expected = intrinsic_dimension(distances(points))
    repeated = np.concatenate([points, points[[3, 3, 17]], points[:1] + 1e-17])
    order = rng.permutation(64)
    found = intrinsic_dimension(distances(repeated[order]))
    assert (expected.merged, found.merged, found.points) == (0, 4, 60)
    assert found.values == pytest.approx(expected.values, rel=1e-13)
    kept, merged = merge_duplicates(distances(repeated))
    assert kept.tolist() == list(range(60)) and merged == 4


def test_merging_at_single_precision(rng):
    matrix = distances(rng.standard_normal((50, 8)))
    matrix[7, 9] = matrix[9, 7] = 1e-7 * matrix.max()
    assert intrinsic_dimension(matrix).merged == 0
    assert intrinsic_dimension(torch.tensor(matrix, dtype=torch.float32)).merged == 1


def test_result_and_inputs(rng):
    matrix = distances(rng.standard_normal((40, 3)))
    result = intrinsic_dimension(matrix, k=5, estimators="mle")
    assert result.to_json() == {"values": {"mle": result.values["mle"]}, "k": 5, "points": 40, "merged": 0}
    kept = matrix.copy()
    assert intrinsic_dimension(torch.from_numpy(matrix), k=5).values["mle"] == result.values["mle"]
    assert intrinsic_dimension(matrix.T[::1, ::1], k=5).values["mle"] == result.values["mle"]
    assert np.array_equal(matrix, kept)


def test_all_distances_equal_is_an_infinite_dimension():
    found = intrinsic_dimension(np.ones((30, 30)) - np.eye(30)).values
    assert all(value == math.inf for value in found.values())


@pytest.mark.parametrize("n", [0, 1, 2, 20])
def test_too_few_points(n):
    with pytest.raises(UserError, match=f"{n} distinct points"):
        intrinsic_dimension(np.ones((n, n)) - np.eye(n))
    with pytest.raises(UserError, match="1 distinct points"):
        intrinsic_dimension(np.zeros((9, 9)))


def test_bad_inputs_are_refused():
    for options in ({"k": 1}, {"k": 2}, {"k": 2.5}, {"k": True}, {"estimators": ("pca",)}, {"estimators": ()}):
        with pytest.raises(UserError):
            intrinsic_dimension(LINE, **options)
    for bad in (np.zeros((3, 4)), LINE - 1, np.where(LINE == 2, math.nan, LINE), LINE + np.triu(LINE)):
        with pytest.raises(UserError):
            intrinsic_dimension(bad, k=2, estimators="mle")
    far = np.where(LINE >= 2, math.inf, LINE)
    with pytest.raises(UserError, match="finite"):
        intrinsic_dimension(far, k=2, estimators="mle")
