"""Early exits and layer dropout: against truncated models and rows run alone, through stops and in many processes."""

from dataclasses import replace
from pathlib import Path

import intervened_training
import numpy as np
import pytest
import torch
from launching import torchrun
from test_precision import cheap_compiler, compiling
from test_state import same_end, stopped
from tiny_preset import TINY
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from geowidth import records
from geowidth.cascade import predicted_fan_in, residual_blocks
from geowidth.models import ModelConfig, TaperedTransformer, load_model
from geowidth.models.config import block_flops, training_flops
from geowidth.train import checkpoint, train
from geowidth.train.losses import accumulate_gradients, mean_loss
from geowidth.train.supervision import (
    SupervisedStep,
    Supervision,
    dropout_rates,
    exit_weights,
    kept_rows,
    mean_exits,
    mean_rates,
    most_exits,
    run_flops,
)
from geowidth.train.world import World

CONFIG = ModelConfig(19, 4, 16, 2, (12, 7, 0, 5), 8)
TOKENS = torch.arange(45).view(5, 9) * 7 % 19
SETTINGS = replace(TINY.training, steps=12, batch=5, microbatch=2)
ARGUMENTS = {"widths": (30, 18), "seed": 4, "watch": lambda *_: None}
SUPERVISED = {"exit_loss": 0.5, "exit_curriculum": "gradual", "layer_dropout": 0.4}
SUPERVISED |= {"layer_dropout_curriculum": "exponential"}
ALL = {"none": {}, "rotational": {"exit_period": 3}, "gradual": {}}


def exits(scale=0.2, weights="layerskip", curriculum="none", **changes):
    return replace(
        SETTINGS, exit_loss=scale, exit_weights=weights, exit_curriculum=curriculum, **ALL[curriculum], **changes
    )


def summed(model, tokens=TOKENS):
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


def truncated(model, blocks):
    """The model of the first `blocks` places, with the same tensors."""
    config = replace(model.config, layers=blocks, widths=model.config.widths[:blocks])
    short = TaperedTransformer(config, seed=None)
    short.load_state_dict({n: t for n, t in model.state_dict().items() if n in short.state_dict()})
    return short


def test_weights_are_those_of_the_paper():
    """Section 4.1, by hand for four layers and e = 0.2; with e = 1 and equal weights all are alike."""
    np.testing.assert_allclose(exit_weights(exits(), 4, 0) * 4.4, [0, 0.2, 0.6, 3 + 0.6])
    np.testing.assert_allclose(exit_weights(exits(0.5, "equal"), 3, 0), [0.25, 0.25, 0.5])
    np.testing.assert_allclose(exit_weights(exits(1, "equal"), 4, 0), [0.25] * 4)
    for weights in ("layerskip", "equal"):
        assert exit_weights(exits(0.2, weights), 1, 0).tolist() == [1.0]
    assert exit_weights(SETTINGS, 3, 5).tolist() == [0, 0, 1]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_weights_tie_in_with_the_predicted_fan_in(layers):
    weights = exit_weights(exits(1, "equal"), layers, 0)
    count = np.arange(layers, 0, -1)
    np.testing.assert_allclose(predicted_fan_in(layers, head_weights=weights) * layers, count * (count + 1) / 2)


def test_curricula_by_hand():
    on = {name: np.array([exit_weights(exits(1, "equal", name), 4, step) > 0 for step in range(12)]) for name in ALL}
    assert on["none"].all() and all(found[:, -1].all() for found in on.values())
    assert on["rotational"][:4, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    # One more every 12 / 8 steps, from the last: after 1.5, 3 and 4.5 of them.
    assert [int(np.flatnonzero(on["gradual"][:, place])[0]) for place in range(4)] == [5, 3, 2, 0]


def test_dropout_rates_by_hand_and_what_is_drawn():
    settings = replace(SETTINGS, layer_dropout=0.5, batch=4000)
    np.testing.assert_allclose(dropout_rates(settings, 3, 7), [0, 0.5 * (2**0.5 - 1), 0.5])
    growing = replace(settings, layer_dropout_curriculum="exponential")
    np.testing.assert_allclose(dropout_rates(growing, 3, 11), dropout_rates(settings, 3, 0))
    assert kept_rows(growing, 3, 0, 0) is None and dropout_rates(settings, 1, 0).tolist() == [0.5]
    kept = kept_rows(settings, 3, 0, 7)
    assert kept.shape == (3, 4000) and kept[0].all()
    np.testing.assert_allclose(1 - kept.double().mean(1), dropout_rates(settings, 3, 7), atol=0.03)
    assert torch.equal(kept, kept_rows(settings, 3, 0, 7))
    others = [kept_rows(settings, 3, 0, 8), kept_rows(settings, 3, 1, 7)]
    assert not any(torch.equal(kept, other) for other in others)
    few = kept_rows(replace(settings, batch=7), 3, 0, 7)
    assert torch.equal(few, kept[:, :7])  # a row's draws do not depend on how many there are


@pytest.mark.parametrize(
    ("weights", "curriculum"), [("layerskip", "none"), ("equal", "rotational"), ("layerskip", "gradual")]
)
def test_the_loss_and_its_gradient_are_those_of_truncated_models(weights, curriculum):
    model = TaperedTransformer(CONFIG, seed=1)
    settings, step = exits(0.7, weights, curriculum), 4
    supervised = Supervision(CONFIG, settings, 0).at(step, range(5))
    found = accumulate_gradients(model, TOKENS[:, :-1], TOKENS[:, 1:], 2, step=supervised)
    shorts = [truncated(model, blocks) for blocks in range(1, 5)]
    losses = [summed(short) / 40 for short in shorts]
    wanted = sum(w * loss for w, loss in zip(exit_weights(settings, 4, step), losses, strict=True))
    wanted.backward()
    assert found == pytest.approx(wanted.item(), rel=1e-6)
    assert supervised.last_loss(World()) / 40 == pytest.approx(losses[-1].item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        parts = [dict(short.named_parameters()).get(name) for short in shorts]
        grads = [part.grad for part in parts if part is not None and part.grad is not None]
        torch.testing.assert_close(parameter.grad, sum(grads), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("change", [{}, {"recompute": "ffn"}, {"recompute": "block"}, {"compile": True}])
def test_rows_pass_blocks_by_as_if_they_were_run_alone_without_them(change):
    """With rows that pass every block by, and pieces in which no row goes through a block. `fixed` is what compiled
    blocks are run with."""
    model = TaperedTransformer(CONFIG, seed=1)
    model.recompute_in_backward(change.get("recompute", "none"))
    kept = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 0, 1, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
    kept[:, 1] = False
    step = SupervisedStep(np.array([0.0, 0.25, 0.0, 0.75]), kept, fixed=change.get("compile", False))
    found = accumulate_gradients(model, TOKENS[:, :-1], TOKENS[:, 1:], 2, step=step)
    alone, total = TaperedTransformer(CONFIG, seed=1), 0.0
    for row in range(5):
        for weight, places in ((0.25, 2), (0.75, 4)):
            left_out = [place for place in range(4) if place >= places or not kept[place, row]]
            with residual_blocks(alone).without(left_out):
                total = total + weight * summed(alone, TOKENS[row : row + 1]) / 40
    total.backward()
    assert found == pytest.approx(total.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        other = alone.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, other, atol=1e-7, rtol=1e-4, msg=lambda text, name=name: name + text)


def test_documents_are_masked_in_the_rows_that_are_kept():
    model = TaperedTransformer(CONFIG, seed=1)
    kept = torch.ones(4, 5, dtype=torch.bool)
    kept[1, ::2] = False
    documents = torch.arange(8).expand(5, 8) // torch.arange(3, 8)[:, None]
    step = SupervisedStep(np.array([0.0, 0.0, 0.0, 1.0]), kept)
    arguments = (TOKENS[:, :-1], TOKENS[:, 1:], torch.device("cpu"), lambda tokens: documents, 0)
    found = step.loss(model, *arguments).item()
    whole = SupervisedStep(np.array([0.0, 0.0, 0.0, 1.0])).loss(model, *arguments).item()
    rows = 0.0
    for row in range(5):
        with residual_blocks(model).without([] if kept[1, row] else [1]):
            logits = model(TOKENS[row : row + 1, :-1], documents[row : row + 1])
            rows += functional.cross_entropy(logits[0], TOKENS[row, 1:], reduction="sum").item()
    assert found == pytest.approx(rows, rel=1e-6) and found != pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("curriculum", ALL)
@pytest.mark.parametrize("steps", [1, 7, 12])
def test_what_is_counted_is_the_mean_over_steps(curriculum, steps):
    settings = exits(0.3, curriculum=curriculum, layer_dropout=0.4, layer_dropout_curriculum="exponential")
    rates = [dropout_rates(settings, 4, step) for step in range(steps)]
    weights = [exit_weights(settings, 4, step) for step in range(steps)]
    np.testing.assert_allclose(mean_rates(settings, 4, steps), np.mean(rates, 0), atol=1e-12)
    assert mean_exits(settings, 4, steps) == pytest.approx(np.mean([(w > 0).sum() for w in weights]))
    assert most_exits(CONFIG, settings) == max((exit_weights(settings, 4, s) > 0).sum() for s in range(12))


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, repeat_last=2, repeat_times=2)])
def test_flops_are_those_of_the_matrix_products(config):
    """Of one step whose draws are those of its rates: against torch's counter, which leaves no key out of attention."""
    settings = exits(0.3, "equal", layer_dropout=0.6, batch=10)
    places, model, counter = len(config.order), TaperedTransformer(config, seed=0), FlopCounterMode(display=False)
    rates = np.round(dropout_rates(settings, places, 0) * 10).astype(int)
    kept = torch.arange(10) >= torch.from_numpy(rates)[:, None]
    step, tokens = SupervisedStep(exit_weights(settings, places, 0), kept), TOKENS.repeat(2, 1)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
        step.loss(model, tokens[:, :-1], tokens[:, 1:], torch.device("cpu"), None, 0)
    passed = kept.sum(1).tolist()
    skipped = 4 * 16 * sum(passed) * (64 - 36)
    shares = [count / 10 for count in passed]
    counted = sum(share * block_flops(config, layer, 8) for share, layer in zip(shares, config.order, strict=True))
    assert counter.get_total_flops() - skipped == pytest.approx(80 * (counted + places * 2 * 19 * 16))
    drawn = 1 - dropout_rates(settings, places, 0)
    mean = sum(share * block_flops(config, layer, 8) for share, layer in zip(drawn, config.order, strict=True))
    assert run_flops(config, settings, 1) == pytest.approx(3 * 80 * (mean + places * 2 * 19 * 16), abs=1)
    plain = replace(settings, exit_loss=0.0, exit_weights="layerskip", layer_dropout=0.0)
    assert run_flops(config, plain, 3) == training_flops(config, 240)


def test_settings_of_nothing_give_the_bits_of_a_plain_training(tiny, text, tmp_path):
    """e = 0, no dropout, equal gradients off: the plain path. Weights of the last exit alone give the same too."""
    train(tiny, out=tmp_path / "plain", corpus=text, **ARGUMENTS)
    nothing = {"exit_loss": 0.0, "layer_dropout": 0.0, "equal_gradients": False, "exit_period": 9}
    train(tiny, out=tmp_path / "nothing", corpus=text, **nothing, **ARGUMENTS)
    plain, same = (load_model(tmp_path / name).state_dict() for name in ("plain", "nothing"))
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    model, other = (TaperedTransformer(CONFIG, seed=1) for _ in range(2))
    step = SupervisedStep(np.array([0.0, 0.0, 0.0, 1.0]), torch.ones(4, 5, dtype=torch.bool))
    found = accumulate_gradients(model, TOKENS[:, :-1], TOKENS[:, 1:], 2, step=step)
    assert found == accumulate_gradients(other, TOKENS[:, :-1], TOKENS[:, 1:], 2)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_stopped_and_resumed_to_the_same_bits(tiny, text, tmp_path):
    changes = {**SUPERVISED, "optimizer": "sgd", "equal_gradients": True, "learning_rate": 0.3}
    train(tiny, out=tmp_path / "whole", corpus=text, **changes, **ARGUMENTS)
    stopped(tiny, text, tmp_path / "cut", 7, **changes)
    train(tiny, out=tmp_path / "cut", corpus=text, **changes, **ARGUMENTS)
    same_end(tmp_path / "whole", tmp_path / "cut")
    result = checkpoint.read_result(tmp_path / "cut")
    lines = records.read_json_lines(tmp_path / "cut" / "metrics.jsonl")
    assert all(("objective" in line) is (line["split"] == "train") for line in lines)
    assert result["flops"] == run_flops(replace(tiny.model, widths=(30, 18)), settings_of(result))


def settings_of(result):
    from geowidth.models.training import TrainingSettings

    return TrainingSettings.from_json(result["training"])


def test_validation_is_of_the_plain_model(tiny, text, tmp_path):
    from geowidth.text.corpus import load_corpus, windows

    result = train(tiny, out=tmp_path, corpus=text, steps=2, **SUPERVISED, **ARGUMENTS)
    held_out = windows(load_corpus(text).validation, tiny.model.context, tiny.training.evaluation_windows)
    assert result["loss"] == mean_loss(load_model(tmp_path), held_out, tiny.training.microbatch)


@compiling
def test_compiled_blocks_train_alike_and_keep_one_graph_a_way(tiny, text, tmp_path, monkeypatch):
    changes = {"exit_loss": 0.5, "layer_dropout": 0.7, "steps": 4, "evaluations": 1, "widths": (24, 24)}
    changes |= {"seed": 4, "watch": lambda *_: None}
    with cheap_compiler(monkeypatch):
        found = train(tiny, out=tmp_path / "compiled", corpus=text, compile=True, **changes)
    plain = train(tiny, out=tmp_path / "plain", corpus=text, **changes)
    assert found["compiled"] == {"graphs": 2, "breaks": 0}
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-4)


def test_two_processes_give_the_training_of_one(text, tmp_path):
    """Rows that two processes do not share evenly, blocks repeated, a layer without a width, pieces without a row."""
    done = torchrun(2, Path(__file__).with_name("intervened_training.py"), tmp_path, text)
    torch.set_num_threads(1)
    intervened_training.run(tmp_path / "alone", text, "none")
    wanted = load_model(tmp_path / "alone")
    for way in ("ddp", "fsdp"):
        assert checkpoint.read_result(tmp_path / way) is not None, done.stderr
        lines = [records.read_json_lines(tmp_path / name / "metrics.jsonl") for name in (way, "alone")]
        for line, other in zip(*lines, strict=True):
            for name in {"loss", "objective", "block_gradient_norms", "gradient_norm"} & set(line):
                np.testing.assert_allclose(line[name], other[name], rtol=2e-4)
        for name, parameter in load_model(tmp_path / way).named_parameters():
            torch.testing.assert_close(parameter, wanted.get_parameter(name), rtol=0, atol=1e-4)
