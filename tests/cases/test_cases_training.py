"""Gradient accumulation weighs tokens, however the batch is cut: case F1."""

import pytest
import torch
from torch.nn import functional

from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.train.losses import IGNORED, accumulate_gradients

CONFIG = ModelConfig(vocabulary=32, layers=2, dimension=16, heads=2, widths=(24, 12), context=16)


class FixedLosses(torch.nn.Module):
    """A model whose loss at target 0 is the token itself (plus a shift of 0 that takes the gradient)."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(()))

    def forward(self, tokens):
        return torch.stack((torch.zeros(tokens.shape), torch.log(torch.expm1(tokens + self.shift))), -1)


def test_F1_short_microbatches_do_not_count_more():
    model = FixedLosses()
    tokens = torch.tensor([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0]])
    targets = torch.tensor([[0, IGNORED, IGNORED], [0, 0, 0]])
    assert accumulate_gradients(model, tokens, targets, 1) == pytest.approx(7 / 4, rel=1e-6)
    assert model.shift.grad.item() == pytest.approx(1.0, rel=1e-6)


def sequences_of_lengths_1_to_8(generator):
    tokens = torch.randint(32, (8, 9), generator=generator)
    targets = tokens[:, 1:].clone()
    for row in range(8):
        targets[row, row + 1 :] = IGNORED
    return tokens[:, :-1], targets


@pytest.mark.parametrize("microbatch", [1, 2, 3, 4, 8])
def test_F1_one_step_is_the_same_for_every_cut(generator, microbatch):
    tokens, targets = sequences_of_lengths_1_to_8(generator)
    cut, whole = (TaperedTransformer(CONFIG, seed=3) for _ in range(2))
    value = accumulate_gradients(cut, tokens, targets, microbatch)
    loss = functional.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=1e-6)
    for model in (cut, whole):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    for (name, one), (_, other) in zip(cut.named_parameters(), whole.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=name)


def test_F1_an_empty_microbatch_adds_nothing(generator):
    tokens, targets = sequences_of_lengths_1_to_8(generator)
    model, alone = (TaperedTransformer(CONFIG, seed=3) for _ in range(2))
    masked = torch.full_like(targets, IGNORED)
    assert accumulate_gradients(alone, tokens, masked, 4) == 0.0
    assert all(p.grad is None or not p.grad.any() for p in alone.parameters())
    value = accumulate_gradients(model, torch.cat([tokens, tokens]), torch.cat([targets, masked]), 8)
    assert value == pytest.approx(accumulate_gradients(alone, tokens, targets, 8), rel=1e-7)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
