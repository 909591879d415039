"""A preset that trains in a fraction of a second, and a text for it."""

import random
from dataclasses import replace

import pytest

from geowidth.models import ModelConfig
from geowidth.models.presets import PRESETS, Preset, TrainingSettings

MODEL = ModelConfig(vocabulary=256, layers=2, dimension=16, heads=2, widths=(24, 24), context=16)
SETTINGS = TrainingSettings(steps=12, batch=4, microbatch=4, learning_rate=1e-2, evaluations=3, evaluation_windows=8)


@pytest.fixture
def tiny(monkeypatch):
    """The preset, also known to this process by its name."""
    preset = Preset("tiny", MODEL, SETTINGS, replace(PRESETS["nano"].run, multiple=1))
    monkeypatch.setitem(PRESETS, "tiny", preset)
    return preset


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text file of 20,000 letters drawn from few words."""
    words = ["the", "width", "of", "a", "layer", "is", "what", "its", "work", "asks", "for\n"]
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    drawn = random.Random(1)
    path.write_text(" ".join(drawn.choice(words) for _ in range(4000)))
    return path
