"""How forward passes are dealt to processes. That two of them give the bytes of one is tested where two are started:
tests/train/test_distributed.py."""

import pytest
import torch

from geowidth.measure.states import capture
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.storage import save_model
from geowidth.ranks import Ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that is quick to measure."""
    path = tmp_path_factory.mktemp("model")
    config = ModelConfig(vocabulary=256, layers=3, dimension=16, heads=2, widths=(20, 7, 3), context=16)
    save_model(TaperedTransformer(config, seed=1), path)
    return path


class Half(Ranks):
    """The first of two processes, seen from inside: the other one's part stays zero."""

    size = 2


def test_whole_batches_are_dealt(folder):
    from geowidth.measure.opening import open_model

    model = open_model(folder).model
    tokens = torch.arange(16 * 64).remainder(251)
    whole, half = (capture(model, tokens, None, batch=8, ranks=ranks) for ranks in (Ranks(), Half()))
    own = (half.before != 0).any(-1).any(0)
    assert own.sum() == len(own) / 2
    assert torch.equal(half.before[:, own], whole.before[:, own])
    assert torch.equal(half.token_ids, whole.token_ids)
