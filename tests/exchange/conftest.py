"""An exported model that tests may damage."""

import pytest
from exchange_models import small

from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export


@pytest.fixture
def folder(tmp_path):
    export(checkpoint_from(small()), "hf", tmp_path / "model")
    return tmp_path / "model"
