"""One optimiser step: gradients that do not depend on how the batch is cut, decay, learning rate."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from geowidth.errors import UserError
from geowidth.models import TaperedTransformer
from geowidth.train.losses import IGNORED, accumulate_gradients
from geowidth.train.optimise import evaluation_steps, learning_rate, make_optimizers


def lengths_batch():
    """8 sequences of lengths 1..8, padded to 8 with IGNORED targets."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(256, (8, 9), generator=generator)
    targets = tokens[:, 1:].clone()
    for row in range(8):
        targets[row, row + 1 :] = IGNORED
    return tokens[:, :-1], targets


@pytest.mark.parametrize("microbatch", [1, 2, 3, 4, 8, 100])
def test_accumulation_does_not_depend_on_the_cut(tiny, microbatch):
    tokens, targets = lengths_batch()
    models = [TaperedTransformer(tiny.model, seed=1) for _ in range(2)]
    values = [accumulate_gradients(models[0], tokens, targets, microbatch)]
    loss = functional.cross_entropy(models[1](tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    values.append(loss.item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    for model in models:
        make_optimizers(model, tiny.training).step()
    for (name, a), (_, b) in zip(models[0].named_parameters(), models[1].named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_accumulation_weights_tokens():
    """Token losses [4] and [1, 1, 1] in two microbatches: 7 / 4, where the mean of means is 2.5."""

    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(()))

        def forward(self, tokens):  # the loss of target 0 is the token itself, plus the shift
            return torch.stack((torch.zeros(tokens.shape), torch.log(torch.expm1(tokens + self.shift))), -1)

    model = Fixed()
    tokens = torch.tensor([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0]])
    targets = torch.tensor([[0, IGNORED, IGNORED], [0, 0, 0]])
    assert accumulate_gradients(model, tokens, targets, 1) == pytest.approx(1.75, rel=1e-6)
    assert model.shift.grad.item() == pytest.approx(1.0, rel=1e-6)


def test_microbatches_without_tokens_add_nothing(tiny):
    model = TaperedTransformer(tiny.model)
    tokens, targets = lengths_batch()
    accumulate_gradients(model, tokens, targets, 8)
    wanted = [p.grad.clone() for p in model.parameters()]
    empty = torch.full_like(targets, IGNORED)
    accumulate_gradients(model, tokens, empty, 4)
    assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))
    model.zero_grad()
    accumulate_gradients(model, torch.cat((tokens, tokens)), torch.cat((targets, empty)), 8)
    assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))
    assert accumulate_gradients(model, tokens[:0], targets[:0], 4) == 0.0


def test_decay_is_on_matrices_only(tiny):
    model = TaperedTransformer(tiny.model)
    decay = {
        p: group["weight_decay"] for group in make_optimizers(model, tiny.training).groups() for p in group["params"]
    }
    assert {name: decay[p] for name, p in model.named_parameters()} == {
        name: 0.1 if p.ndim == 2 else 0.0 for name, p in model.named_parameters()
    }


def test_learning_rate(tiny):
    settings = replace(tiny.training, steps=100, learning_rate=1.0, warmup=0.1, final_rate=0.2)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert rates[54] == pytest.approx(0.6)  # half-way down
    assert rates[-1] == pytest.approx(0.2)
    assert all(a >= b for a, b in zip(rates[9:], rates[10:], strict=False))
    assert learning_rate(replace(settings, steps=1), 0) == 1.0


def test_evaluations_are_evenly_spread_and_end_with_the_last_step(tiny):
    assert sorted(evaluation_steps(replace(tiny.training, steps=100, evaluations=4))) == [25, 50, 75, 100]
    assert sorted(evaluation_steps(replace(tiny.training, steps=3, evaluations=9))) == [1, 2, 3]


def test_warm_up_stable_decay(tiny):
    settings = replace(tiny.training, steps=100, learning_rate=1.0, decay="wsd", decay_share=0.2, final_rate=0.1)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert rates[10:80] == [1.0] * 70
    assert rates[80:] == pytest.approx([1 - 0.9 * k / 20 for k in range(1, 21)])
    assert learning_rate(replace(settings, warmup=0.0, decay_share=1.0), 99) == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"warmup 0.5 and decay_share 0.6 exceed all steps"):
        replace(settings, warmup=0.5, decay_share=0.6)


def test_muon_moves_the_matrices_in_the_blocks_and_adamw_the_rest(tiny):
    config = replace(tiny.model, widths=(24, 0))  # an empty FFN has matrices too
    model = TaperedTransformer(config)
    optimizers = make_optimizers(model, replace(tiny.training, optimizer="muon"))
    owners = {name: type(optimizers.part_of(p)).__name__ for name, p in model.named_parameters()}
    assert owners == {
        name: "Muon" if name.startswith("blocks.") and p.ndim == 2 and p.numel() else "AdamW"
        for name, p in model.named_parameters()
    }
    assert {"Muon", "AdamW"} == set(owners.values())


def test_one_rate_serves_muon_and_adamw(tiny):
    """An update of Muon has the size of one of AdamW: a root mean square of 0.2 times the rate, whatever the shape."""
    model = TaperedTransformer(replace(tiny.model, widths=(96, 40)), seed=1)
    settings = replace(tiny.training, optimizer="muon", weight_decay=0.0)
    optimizers = make_optimizers(model, settings)
    tokens = torch.randint(256, (8, 16), generator=torch.Generator().manual_seed(2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers.set_rate(0.01)
    accumulate_gradients(model, tokens, tokens.roll(1, 1), 8)
    optimizers.step()
    for name, p in model.named_parameters():
        size = (p.detach() - before[name]).square().mean().sqrt().item() / 0.01
        if type(optimizers.part_of(p)).__name__ == "Muon":
            assert 0.1 < size < 0.3, name
        elif p.ndim == 1:
            assert size == pytest.approx(1, rel=1e-2), name  # AdamW's first step is the sign of the gradient


def test_muon_learns(tiny, text, tmp_path):
    from geowidth.train import train

    result = train(tiny, (30, 18), 1, tmp_path, steps=80, corpus=text, optimizer="muon", watch=lambda *_: None)
    assert result["loss"] < 2.5 and result["training"]["optimizer"] == "muon"


def test_muon_is_refused_where_torch_has_none(tiny, text, tmp_path, monkeypatch):
    from geowidth.train import train

    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UserError, match=r"optimizer is 'muon', but torch .* has no Muon; install torch 2.9 or newer"):
        train(tiny, out=tmp_path / "run", corpus=text, optimizer="muon")
    assert not (tmp_path / "run").exists()
