"""Which neurons stay, by their scores."""

import numpy as np
import pytest
import torch

from geowidth.errors import UserError
from geowidth.slicing import kept_neurons
from geowidth.slicing.selection import standardised


def test_the_largest_stay_in_their_order():
    scores = [np.array([0.1, 3.0, 2.0, 2.0, np.inf]), np.array([1.0, 1.0, 1.0]), np.array([])]
    kept = kept_neurons(scores, (3, 2, 0))
    assert [k.tolist() for k in kept] == [[1, 2, 4], [0, 1], []]
    assert all(k.dtype == torch.int64 for k in kept)
    assert [len(k) for k in kept_neurons(scores, (0, 3, 0))] == [0, 3, 0]


@pytest.mark.parametrize(
    ("scores", "widths", "words"),
    (
        ([np.ones(3)], (4,), "width of layer 0 is 4; allowed: whole numbers from 0 to 3"),
        ([np.ones(3)], (-1,), "width of layer 0 is -1"),
        ([np.ones(3), np.array([1.0, np.nan])], (1, 1), "neuron 1 of layer 1 is no number"),
        ([np.ones(3)], (1, 1), "2 widths came for 1 layers"),
    ),
)
def test_bad_input_is_one_line(scores, widths, words):
    with pytest.raises(UserError, match=words):
        kept_neurons(scores, widths)


def test_standardised_scores_can_be_compared():
    first, second, empty = standardised([np.array([1.0, 2.0, 6.0]), np.array([5.0, 5.0]), np.array([])])
    assert np.mean(first) == pytest.approx(0) and np.std(first) == pytest.approx(1)
    np.testing.assert_allclose(first, standardised([7 * np.array([1.0, 2.0, 6.0]) + 3])[0])
    assert second.tolist() == [0, 0] and len(empty) == 0
