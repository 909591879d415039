"""The gradient ledger: norms against their definition, whatever a loop does to gradients, and through checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from cascade_models import TOKENS, ours
from launching import own_lines, torchrun
from ledger_processes import trained
from torch.nn import functional

from geowidth import records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import GradientLedger, ResidualBlocks, residual_blocks
from geowidth.errors import UserError
from geowidth.train.losses import IGNORED, accumulate_gradients

TARGETS = TOKENS.roll(-1, 1)


def loss_of(model, tokens=TOKENS, targets=TARGETS):
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def norms_of(blocks):
    """By definition: the L2 norm of all of a block's gradients as one vector."""
    flat = [[p.grad.flatten().double() for p in blocks.parameters(i) if p.grad is not None] for i in range(len(blocks))]
    return [float(torch.cat(own).norm()) if own else 0.0 for own in flat]


def test_norms_and_shares_of_a_bare_loop():
    model = ours()
    blocks = residual_blocks(model)
    ledger, optimizer, wanted = GradientLedger(blocks), torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        norms = ledger.record()
        wanted.append(norms_of(blocks))
        np.testing.assert_allclose(norms, wanted[-1], rtol=1e-6)
        optimizer.step()
    found, wanted = ledger.result({"by": "test"}), np.array(wanted)
    np.testing.assert_allclose(found.norms, wanted.sum(0), rtol=1e-6)
    np.testing.assert_allclose(found.shares, wanted.sum(0) / wanted.sum(), rtol=1e-6)
    np.testing.assert_allclose(found.mean_step_shares, (wanted / wanted.sum(1, keepdims=True)).mean(0), rtol=1e-6)
    assert (found.steps, found.skipped, found.blocks) == (3, 0, blocks.names)


def test_shares_by_hand():
    """x (1 + a)(1 + b)(1 + c), a block a factor: the gradient of a is x (1 + b)(1 + c), and so on."""

    class Factor(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = torch.nn.Parameter(torch.tensor(value))

        def forward(self, x):
            return x + self.value * x

    model = torch.nn.Sequential(Factor(1.0), Factor(-0.5), Factor(3.0))
    ledger = GradientLedger(ResidualBlocks(model, list(model)))
    for x in (1.0, -2.0):  # 2, 8, 1 and twice as much: factors 2, 0.5 and 4
        model.zero_grad()
        model(torch.tensor(x)).backward()
        ledger.record()
    found = ledger.result()
    np.testing.assert_allclose(found.norms, [6, 24, 3])
    np.testing.assert_allclose(found.shares, [6 / 33, 24 / 33, 3 / 33])
    np.testing.assert_allclose(found.mean_step_shares, found.shares)


@pytest.fixture
def resnet50():
    """ResNet-50 as transformers lays it out, at an eighth of its channels or less: 3, 4, 6 and 3 bottlenecks."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 64, 128], num_labels=3)
    assert config.layer_type == "bottleneck" and list(config.depths) == [3, 4, 6, 3]
    return transformers.ResNetForImageClassification(config)


def test_resnet50_on_synthetic_images(resnet50):
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels, model = torch.tensor([0, 2, 1, 0]), resnet50.train()
    blocks = residual_blocks(model)
    assert [name[len("resnet.encoder.stages.") :] for name in blocks.names] == [
        f"{stage}.layers.{i}" for stage, depth in enumerate((3, 4, 6, 3)) for i in range(depth)
    ]
    ledger, optimizer = GradientLedger(blocks), torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(images, labels=labels).loss.backward()
        norms = ledger.record()
        np.testing.assert_allclose(norms, norms_of(blocks), rtol=1e-5)
        outside = [p.grad for name, p in model.named_parameters() if ".stages." not in name]
        every = torch.cat([p.grad.flatten().double() for p in model.parameters()]).norm() ** 2
        rest = torch.cat([grad.flatten().double() for grad in outside]).norm() ** 2
        assert float(norms.square().sum() + rest) == pytest.approx(float(every), rel=1e-5)
        optimizer.step()
    shares = ledger.result().shares
    assert shares.shape == (16,) and (shares > 0).all() and abs(shares.sum() - 1) < 1e-12


def test_every_block_of_resnet50_can_be_left_out(resnet50):
    images, blocks = torch.randn(2, 3, 32, 32), residual_blocks(resnet50.eval())
    with torch.no_grad():
        whole = resnet50(images).logits
        for block, module in enumerate(blocks.modules):
            with blocks.without([block]):
                found = resnet50(images).logits
            assert not torch.allclose(found, whole, rtol=1e-6, atol=0)
            scale = module.layer[-1].normalization.weight  # the branch without it is nothing: only the shortcut is left
            kept = scale.clone()
            scale.zero_()
            torch.testing.assert_close(found, resnet50(images).logits)
            scale.copy_(kept)
        torch.testing.assert_close(resnet50(images).logits, whole, rtol=0, atol=0)


def test_scale_and_accumulation_are_divided_out():
    model = ours()
    blocks = residual_blocks(model)
    plain, scaled = GradientLedger(blocks), GradientLedger(blocks)
    loss_of(model).backward()
    plain.record()
    model.zero_grad()
    for row in (slice(0, 1), slice(1, 2)):  # two mean losses added up, each scaled as a gradient scaler does
        (loss_of(model, TOKENS[row], TARGETS[row]) * 1024).backward()
    scaled.record(loss_scale=1024.0, accumulation=2)
    np.testing.assert_allclose(scaled.result().norms, plain.result().norms, rtol=1e-5)


def test_cuts_of_the_batch_change_nothing():
    """Cases F1: token-weighted microbatches of different lengths, an empty one among them."""
    targets, found = TARGETS.repeat(2, 1), []
    for row, tokens in enumerate((6, 1, 3, 0)):
        targets[row, tokens:] = IGNORED
    for microbatch in (4, 2, 1):
        model = ours()
        ledger = GradientLedger(residual_blocks(model))
        accumulate_gradients(model, TOKENS.repeat(2, 1), targets, microbatch)
        ledger.record()
        found.append(ledger.result().norms)
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)


def test_steps_that_a_scaler_skips_and_missing_gradients():
    model = ours()
    ledger = GradientLedger(residual_blocks(model))
    ledger.record()  # no gradient at all: a step that adds nothing
    loss_of(model).backward()
    model.blocks[0].ffn.up.grad = None
    good = ledger.record()
    model.blocks[1].ffn.up.grad[0, 0] = float("inf")
    ledger.record()
    found = ledger.result()
    assert (found.steps, found.skipped) == (2, 1)
    np.testing.assert_array_equal(found.norms, good)
    assert found.step_shares.sum() == pytest.approx(1)


def test_half_precision_gradients_do_not_overflow():
    block = torch.nn.Linear(4, 4).half()
    model = torch.nn.Sequential(block)
    ledger = GradientLedger(ResidualBlocks(model, [block]))
    for parameter in block.parameters():
        parameter.grad = torch.full_like(parameter, 20000.0)
    np.testing.assert_allclose(ledger.record(), [20000 * 20**0.5])


def test_state_reads_back_and_goes_on(tmp_path):
    model = ours()
    blocks = residual_blocks(model)
    ledger = GradientLedger(blocks)
    loss_of(model).backward()
    ledger.record()
    state = records.loads(records.dumps(ledger.state_dict()))
    again = GradientLedger(blocks)
    again.load_state_dict(state)
    ledger.record()
    again.record()
    assert again.state_dict() == ledger.state_dict()
    ledger.result({"a": 1}).write(tmp_path / "ledger.json")
    found = Ledger.read(tmp_path / "ledger.json")
    assert found.settings == {"a": 1} and found.to_json() == ledger.result({"a": 1}).to_json()


def test_refusals(tmp_path):
    blocks = residual_blocks(ours())
    ledger = GradientLedger(blocks)
    with pytest.raises(UserError, match="loss_scale is 0"):
        ledger.record(loss_scale=0)
    with pytest.raises(UserError, match="accumulation is 0"):
        ledger.record(accumulation=0)
    with pytest.raises(UserError, match="damaged: steps is -1"):
        ledger.load_state_dict(ledger.state_dict() | {"steps": -1})
    with pytest.raises(UserError, match="of 3 blocks"):
        GradientLedger(ResidualBlocks(blocks.model, blocks.modules[:2])).load_state_dict(ledger.state_dict())
    with pytest.raises(UserError, match="holds no gradient"):
        _ = ledger.result().shares
    records.write_json(tmp_path / "x.json", ledger.result().to_json() | {"norms": [1.0, 2.0]})
    with pytest.raises(UserError, match="x.json: norms of a ledger has 2 numbers for 3 layers"):
        Ledger.read(tmp_path / "x.json")


def test_many_processes_record_the_same(tiny, text, tmp_path):
    """DDP's gradients are reduced already, FSDP2's lie in shards; decisions are those of summed scores (cases F3).

    The same through `geowidth train --ledger`, whose first process writes the ledger.
    """
    finished = torchrun(2, Path(__file__).with_name("ledger_processes.py"), tmp_path, text)
    assert finished.stdout.count("same") == 2 and not own_lines(finished), finished.stderr[-3000:]
    assert trained(tmp_path / "none", text, "none") == 0
    alone = Ledger.read(tmp_path / "none" / "ledger.json")
    for way in ("ddp", "fsdp"):
        found = Ledger.read(tmp_path / way / "ledger.json")
        assert (found.steps, found.skipped, found.blocks) == (4, 0, alone.blocks)
        np.testing.assert_allclose(found.norms, alone.norms, rtol=1e-4)
        assert records.read_json(tmp_path / way / "result.json")["environment"]["parallel"] == way
