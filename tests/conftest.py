"""Shared fixtures. Warnings are errors (pyproject.toml)."""

import numpy as np
import pytest
import torch


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
