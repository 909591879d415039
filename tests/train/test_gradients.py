"""Equal gradient norms: theorems on small stacks, and what a training with them does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_preset import TINY

from geowidth import records
from geowidth.cascade.training import block_norms
from geowidth.errors import UserError
from geowidth.models import TaperedTransformer, load_model
from geowidth.train import train
from geowidth.train.gradients import GradientNorms
from geowidth.train.optimise import make_optimizers
from geowidth.train.trainer import gradient_norms
from geowidth.train.world import World

QUIET = {"seed": 3, "watch": lambda *_: None}


def with_gradients(widths=(24, 9)):
    model = TaperedTransformer(TINY.with_widths(widths), 0)
    model(torch.arange(16).view(1, 16)).square().mean().backward()
    return model


def norm(parameters):
    return torch.cat([p.grad.flatten() for p in parameters]).double().norm().item()


def test_norms_become_equal_and_their_sum_stays():
    model = with_gradients()
    before = [norm(block.parameters()) for block in model.blocks]
    outer = {name: p.grad.clone() for name, p in model.named_parameters() if not name.startswith("blocks.")}
    directions = [p.grad / p.grad.norm() for p in model.blocks[0].parameters()]
    gradients = gradient_norms(model)
    measured = gradients.measure()
    np.testing.assert_allclose(measured, before, rtol=1e-6)
    gradients.equalise(measured)
    after = [norm(block.parameters()) for block in model.blocks]
    assert before[0] != pytest.approx(before[1], rel=0.05)
    np.testing.assert_allclose(after, [sum(before) / 2] * 2, rtol=1e-6)
    assert all(torch.equal(model.get_parameter(name).grad, grad) for name, grad in outer.items())
    for parameter, direction in zip(model.blocks[0].parameters(), directions, strict=True):
        torch.testing.assert_close(parameter.grad / parameter.grad.norm(), direction)


def test_a_linear_stack_with_known_derivatives():
    """Of a product w_1 ... w_L x the gradient of w_l is the product over w_l; equalised they are all the mean."""
    weights = [torch.nn.Parameter(torch.tensor([w], dtype=torch.float64)) for w in (0.5, -2.0, 4.0)]
    (3.0 * weights[0] * weights[1] * weights[2]).backward()
    gradients = GradientNorms([[w] for w in weights])
    measured = gradients.measure()
    assert measured.tolist() == [24.0, 6.0, 3.0]
    gradients.equalise(measured)
    assert [w.grad.item() for w in weights] == [-11.0, 11.0, -11.0]


def test_blocks_without_gradient_are_left_alone_and_out_of_the_mean():
    blocks = [[torch.nn.Parameter(torch.ones(2)) for _ in range(2)] for _ in range(4)]
    for scale, block in zip((3.0, 0.0, 1.0), blocks, strict=False):
        block[0].grad = torch.tensor([scale, 0.0])
    gradients = GradientNorms(blocks)
    gradients.equalise(gradients.measure())
    assert gradients.measure().tolist() == [2.0, 0.0, 2.0, 0.0]
    assert blocks[3][0].grad is None and blocks[0][1].grad is None


def test_norms_that_were_measured_clip_to_the_same_bits():
    for most in (1e-3, 1e9):
        usual, shared = with_gradients((24, 0)), with_gradients((24, 0))
        gradients = gradient_norms(shared)
        gradients.measure()
        norms = [World().clip(usual.parameters(), most), World().clip(shared.parameters(), most, gradients.each)]
        assert norms[0] == norms[1]
        for one, other in zip(usual.parameters(), shared.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def moved(folder):
    """How far one step moved each block of a model that began from seed 3."""
    start, end = TaperedTransformer(TINY.model, 3), load_model(folder)
    pairs = zip(start.blocks, end.blocks, strict=True)
    return [
        torch.cat([(p - q).flatten() for p, q in zip(a.parameters(), b.parameters(), strict=True)]).norm().item()
        for a, b in pairs
    ]


def test_sgd_moves_all_blocks_as_far_and_adamw_as_without(tiny, text, tmp_path):
    """One step of SGD is as long as the gradient; the first of AdamW depends on no factor on it (here up to epsilon).

    The ledger holds the norms before they are made equal.
    """
    options = {"corpus": text, "steps": 1, "evaluations": 1, "weight_decay": 0.0, "clip": 1e9, "epsilon": 1e-16}
    for optimizer in ("sgd", "adamw"):
        for equal in (False, True):
            out = tmp_path / f"{optimizer}-{equal}"
            train(tiny, out=out, optimizer=optimizer, equal_gradients=equal, look=block_norms, **options, **QUIET)
    lines = [records.read_json_lines(tmp_path / f"sgd-{equal}" / "metrics.jsonl")[0] for equal in (False, True)]
    norms = lines[0]["block_gradient_norms"]
    assert lines[1]["block_gradient_norms"] == norms
    rate = lines[0]["learning_rate"]
    np.testing.assert_allclose(moved(tmp_path / "sgd-False"), rate * np.array(norms), rtol=1e-3)
    np.testing.assert_allclose(moved(tmp_path / "sgd-True"), rate * np.full(2, np.mean(norms)), rtol=1e-3)
    np.testing.assert_allclose(moved(tmp_path / "adamw-True"), moved(tmp_path / "adamw-False"), rtol=1e-4)


def test_a_look_takes_norms_or_nothing(tiny, text, tmp_path):
    asked = []
    options = {"corpus": text, "steps": 1, "evaluations": 1, **QUIET}
    train(tiny, out=tmp_path / "plain", **options, look=lambda model: lambda: asked.append(model) or {"here": 1})
    line = records.read_json_lines(tmp_path / "plain" / "metrics.jsonl")[0]
    assert line["here"] == 1 and len(asked[0].blocks) == 2


def test_sgd_is_momentum_with_decay_beside_it():
    """Three steps by hand: buffer = 0.9 buffer + gradient, matrices shrink by rate x decay before, vectors do not."""
    settings = replace(TINY.training, optimizer="sgd", momentum=0.9, weight_decay=0.5)
    matrix, vector = torch.nn.Parameter(torch.ones(1, 1)), torch.nn.Parameter(torch.ones(1))
    optimizers = make_optimizers(torch.nn.ParameterDict({"matrix": matrix, "vector": vector}), settings)
    wanted, buffer = np.ones(2), 0.0
    for gradient in (1.0, -2.0, 0.5):
        matrix.grad, vector.grad = torch.full((1, 1), gradient), torch.full((1,), gradient)
        optimizers.set_rate(0.1)
        optimizers.step()
        buffer = 0.9 * buffer + gradient
        wanted = wanted * (1 - 0.1 * 0.5, 1) - 0.1 * buffer
        np.testing.assert_allclose([matrix.item(), vector.item()], wanted, rtol=1e-6)


def test_gradients_before_the_exchange_are_refused():
    class Partial(torch.Tensor):
        placements = (type("Place", (), {"is_partial": lambda self: True, "is_shard": lambda self: False})(),)
        device_mesh = None

    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2).as_subclass(Partial)
    with pytest.raises(UserError, match="not summed over the processes yet; measure it after the exchange"):
        GradientNorms([[parameter]]).measure()
