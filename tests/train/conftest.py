"""The tiny preset, known by its name, and a text for it."""

import random

import pytest
from tiny_preset import TINY

from geowidth.models.presets import PRESETS


@pytest.fixture
def tiny(monkeypatch):
    """The preset, also known to this process by its name."""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    return TINY


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text file of 20,000 letters drawn from few words."""
    words = ["the", "width", "of", "a", "layer", "is", "what", "its", "work", "asks", "for\n"]
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    drawn = random.Random(1)
    path.write_text(" ".join(drawn.choice(words) for _ in range(4000)))
    return path
