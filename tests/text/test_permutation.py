"""An order without memory is one: every place once, spread evenly, another for another key."""

import numpy as np
import pytest

from geowidth.text.permutation import scattered


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097])
def test_every_place_once(count):
    found = scattered(np.arange(count), count, (7, 0))
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(count))


def test_a_place_alone_is_sent_where_it_is_sent_among_others():
    count = 3_000_000_019
    places = np.array([0, 1, 2, 12_345, count - 1])
    found = scattered(places, count, (1, 5))
    assert ((found >= 0) & (found < count)).all() and len(set(found.tolist())) == 5
    assert [int(scattered(places[i : i + 1], count, (1, 5))[0]) for i in range(5)] == found.tolist()
    assert places.tolist() == [0, 1, 2, 12_345, count - 1]


def test_it_shuffles():
    count = 10_007
    one, two = (scattered(np.arange(count), count, key) for key in ((0, 0), (0, 1)))
    expected, spread = (count + 1) / 3, count / np.sqrt(18 * count)
    for order in (one, two):
        steps = np.abs(np.diff(order))  # of two places drawn at random: a third of the way apart on average
        assert abs(steps.mean() - expected) < 6 * spread
        assert np.abs(np.corrcoef(np.arange(count), order)[0, 1]) < 6 / np.sqrt(count)
        assert (order == np.arange(count)).sum() < 10  # one is expected
    assert (one == two).sum() < 10
