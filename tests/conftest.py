"""Shared fixtures. Warnings are errors (pyproject.toml)."""

import random

import numpy as np
import pytest
import torch
from hypothesis import settings
from tiny_preset import TINY
from work_profiles import make_profile

from geowidth.models.presets import PRESETS

# The same examples every time: what others find in a change is what its author found. New ones are tried by
# pytest --hypothesis-profile=default.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _fixed_threads():
    """Every test starts with two torch threads, whatever the one before it set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rng():
    """A seeded numpy generator."""
    return np.random.default_rng(20260802)


@pytest.fixture
def generator():
    """A seeded torch generator."""
    return torch.Generator().manual_seed(20260802)


@pytest.fixture
def tiny(monkeypatch):
    """The preset, also known to this process by its name."""
    monkeypatch.setitem(PRESETS._items, "tiny", TINY)
    return TINY


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text file of 20,000 letters drawn from few words."""
    words = ["the", "width", "of", "a", "layer", "is", "what", "its", "work", "asks", "for\n"]
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    drawn = random.Random(1)
    path.write_text(" ".join(drawn.choice(words) for _ in range(4000)))
    return path


@pytest.fixture
def profile():
    """Eight layers measured at width 344."""
    return make_profile()


@pytest.fixture
def work_file(tmp_path, profile):
    """The profile as work.json."""
    path = tmp_path / "work.json"
    profile.write(path)
    return path
