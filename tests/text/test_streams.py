"""Ids in several files read as one sequence does."""

import numpy as np
import pytest
import torch

from geowidth.text.corpus import DataOrder, windows
from geowidth.text.streams import TokenStream


@pytest.fixture
def both(rng):
    ids = rng.integers(0, 2**16, 1000).astype(np.uint16)
    cuts = [0, 0, 1, 300, 300, 317, 999]
    return torch.from_numpy(ids.astype(np.int64)), TokenStream(np.split(ids, cuts), 2)


def test_slices(both):
    whole, stream = both
    assert len(stream) == stream.numel() == 1000 and stream.dtype == torch.uint16
    for span in (
        slice(None),
        slice(0, 0),
        slice(0, 1),
        slice(250, 320),
        slice(-5, None),
        slice(998, 2000),
        slice(9, 3),
    ):
        assert torch.equal(stream[span], whole[span])
        assert stream[span].dtype == torch.int64
    with pytest.raises(IndexError):
        stream[::2]


def test_windows_and_batches(both):
    whole, stream = both
    assert torch.equal(windows(stream, 17), windows(whole, 17))
    assert torch.equal(windows(stream, 17, 5), windows(whole, 17, 5))
    one, two = (DataOrder(ids, 16, 9, seed=2) for ids in both)
    assert all(torch.equal(one.batch(step), two.batch(step)) for step in (0, 3, 50))
