"""Effective rank and mutual cosine of microbatch gradients."""

import numpy as np
import pytest
import torch

from geowidth.cascade import ResidualBlocks, gradient_directions
from geowidth.cascade.directions import effective_rank, mutual_cosine
from geowidth.errors import UserError


def stack():
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 1, bias=False) for _ in range(2)))
    return model, ResidualBlocks(model, list(model))


def test_known_directions():
    """Losses that are linear in the weights: their gradients are the inputs."""
    model, blocks = stack()
    rows = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 0]])
    found = gradient_directions(
        blocks, [lambda row=row: (model[0](row) + 0 * model[1](row) + model[1](torch.ones(3))).sum() for row in rows]
    )
    np.testing.assert_allclose(found.norms, [[1, 3**0.5], [2, 3**0.5], [0, 3**0.5]], rtol=1e-6)
    np.testing.assert_allclose(found.mutual_cosine, [0, 1], atol=1e-6)
    third = np.array([1 / 3, 2 / 3])
    np.testing.assert_allclose(found.effective_rank, [np.exp(-(third * np.log(third)).sum()), 1], rtol=1e-4)
    assert all(p.grad is None for p in model.parameters())
    assert found.to_json()["mutual_cosine"] == found.mutual_cosine.tolist()


def test_against_singular_values(rng):
    rows = rng.normal(size=(5, 9))
    values = np.linalg.svd(rows, compute_uv=False)
    shares = values / values.sum()
    assert effective_rank(rows @ rows.T) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(5) for j in range(i)]
    assert mutual_cosine(rows @ rows.T) == pytest.approx(np.mean(pairs))
    assert effective_rank(np.eye(4)) == pytest.approx(4)


def test_nothing_and_too_few():
    model, blocks = stack()
    found = gradient_directions(blocks, [lambda: model[1](torch.ones(3)).sum()] * 2)
    assert np.isnan(found.effective_rank[0]) and np.isnan(found.mutual_cosine[0])
    assert found.effective_rank[1] == pytest.approx(1, abs=1e-6)
    with pytest.raises(UserError, match="1 microbatches came"):
        gradient_directions(blocks, [lambda: model[1](torch.ones(3)).sum()])
