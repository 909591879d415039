"""Last blocks applied several times with the same parameters: a longer model whose blocks share them."""

from dataclasses import replace

import pytest
import torch

from geowidth import records
from geowidth.cascade import prune, residual_blocks
from geowidth.chain import resolve
from geowidth.diagnose.calibration import calibrate
from geowidth.errors import UserError
from geowidth.exchange.convert import checkpoint_from
from geowidth.measure import capture
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model
from geowidth.models.config import training_flops
from geowidth.models.presets import PICO

CONFIG = ModelConfig(19, 3, 16, 2, (12, 7, 5), 8, repeat_last=2, repeat_times=3)
ORDER = (0, 1, 2, 1, 2, 1, 2)
TOKENS = torch.arange(16).view(2, 8) % 19


def unrolled(model):
    """The plain model of as many blocks as states pass, each with a copy of the parameters of the one it stands for."""
    config = model.config
    widths = tuple(config.widths[i] for i in ORDER)
    plain = replace(config, layers=len(ORDER), widths=widths, repeat_times=1)
    long = TaperedTransformer(plain, seed=None)
    for name in ("embedding", "norm.weight"):
        long.get_parameter(name).data.copy_(model.get_parameter(name))
    for place, layer in enumerate(ORDER):
        long.blocks[place].load_state_dict(model.blocks[layer].state_dict())
    return long


def test_logits_are_those_of_the_unrolled_model_and_gradients_add_up():
    model = TaperedTransformer(CONFIG, seed=3)
    long = unrolled(model)
    assert CONFIG.order == ORDER and model.parameter_count() == CONFIG.parameters < long.parameter_count()
    assert torch.equal(model(TOKENS), long(TOKENS))
    for one in (model, long):
        one(TOKENS).square().mean().backward()
    for layer, block in enumerate(model.blocks):
        for name, parameter in block.named_parameters():
            summed = sum(long.blocks[i].get_parameter(name).grad for i, own in enumerate(ORDER) if own == layer)
            torch.testing.assert_close(parameter.grad, summed)
    torch.testing.assert_close(model.embedding.grad, long.embedding.grad)


def test_flops_are_spent_every_time_and_memory_of_files_once(tmp_path):
    model = TaperedTransformer(CONFIG, seed=3)
    assert training_flops(CONFIG, 40) == training_flops(unrolled(model).config, 40)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == CONFIG and torch.equal(loaded(TOKENS), model(TOKENS))


def test_recomputation_gives_the_same_gradients():
    found = []
    for what in ("none", "ffn", "block"):
        model = TaperedTransformer(CONFIG, seed=3)
        model.recompute_in_backward(what)
        model(TOKENS).square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_a_config_has_one_form_of_every_meaning():
    plain = replace(CONFIG, repeat_last=0, repeat_times=1)
    assert replace(CONFIG, repeat_times=1) == plain and plain.order == (0, 1, 2)
    assert not {"repeat_last", "repeat_times"} & set(plain.to_json())
    assert ModelConfig.from_json(records.loads(records.dumps(CONFIG.to_json()))) == CONFIG
    old = TaperedTransformer(plain, seed=3).state_dict()
    assert all(
        torch.equal(old[name], tensor) for name, tensor in TaperedTransformer(CONFIG, seed=3).state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeat_last": 4}, "repeat_last is 4; allowed: whole numbers from 0 to 3"),
        ({"repeat_times": 0}, "repeat_times is 0; allowed: whole numbers from 1"),
        ({"repeat_last": 0}, "repeat_times is 3, but repeat_last names no blocks"),
    ],
)
def test_what_repeats_nothing_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        replace(CONFIG, **change)


def test_a_preset_repeats_only_what_is_said_in_full():
    assert PICO.with_repeats(None, None) is PICO
    assert PICO.with_repeats(1, 2).model.order == (0, 1, 2, 3, 3)
    assert PICO.with_repeats(1, 2).with_repeats(2, None).model.order == (0, 1, 2, 3, 2, 3)
    with pytest.raises(UserError, match="repeat_last is 2, but repeat_times is 1"):
        PICO.with_repeats(2, None)
    with pytest.raises(UserError, match="repeat_times is 2, but repeat_last names no blocks"):
        PICO.with_repeats(None, 2)


def test_what_has_no_place_for_repeated_blocks_refuses_them_by_name(tmp_path):
    model = TaperedTransformer(CONFIG, seed=3).eval()
    said = "takes no model that applies its last 2 blocks 3 times"
    with pytest.raises(UserError, match=f"an export {said}"):
        checkpoint_from(model)
    with pytest.raises(UserError, match=f"a measurement of FFNs {said}"):
        capture(model, TOKENS, 4)
    preset = replace(PICO, model=replace(PICO.model, repeat_last=2, repeat_times=3))
    with pytest.raises(UserError, match=f"a run, which measures FFNs, {said}"):
        resolve(preset)
    with pytest.raises(UserError, match=f"a calibration, which measures FFNs, {said}"):
        calibrate(tmp_path / "out", preset)
    save_model(model, tmp_path / "model")
    with pytest.raises(UserError, match=f"pruning {said}"):
        prune(tmp_path / "model", 1, by="similarity", out=tmp_path / "short")
    assert not (tmp_path / "out").exists() and not (tmp_path / "short").exists()


def test_a_block_left_out_is_left_out_every_time():
    model = TaperedTransformer(CONFIG, seed=3).eval()
    short = replace(CONFIG, layers=2, widths=(12, 7), repeat_last=1)
    alone = TaperedTransformer(short, seed=None)
    alone.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("blocks.2.")})
    with residual_blocks(model).without([2]):
        assert torch.equal(model(TOKENS), alone(TOKENS))
