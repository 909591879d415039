"""Initial scales beside widths: output scales at the start, as theory says, and every reader of a schedule."""

import pytest
import torch

from geowidth.allocate import allocate
from geowidth.allocate.arms import Arm
from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.presets import preset_named
from geowidth.train import compare_folders, train

SIZES = {"layers": 4, "base_width": 64, "model_dimension": 32, "quantum": 8}


def output_scales(widths, scales):
    """rms of every FFN's output over many inputs of unit variance, at the start."""
    config = ModelConfig(vocabulary=16, layers=4, dimension=32, heads=2, widths=widths, context=8)
    model = TaperedTransformer(config, 0, scales)
    x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return torch.tensor([block.ffn(x).square().mean().sqrt() for block in model.blocks])


def test_width_makes_all_layers_as_loud_as_the_uniform_model_and_plain_does_not():
    plain, kept = (allocate("cosine", **SIZES, initial_scale=rule) for rule in ("plain", "width"))
    assert kept.widths == plain.widths and plain.initial_scales is None
    uniform = output_scales((64,) * 4, None)
    assert (output_scales(plain.widths, None) / uniform).max() > 1.15
    torch.testing.assert_close(output_scales(kept.widths, kept.initial_scales), uniform, rtol=0.12, atol=0)


def test_alone_has_uniform_widths_that_start_as_loud_as_the_schedule():
    plain, alone = (allocate("cosine", **SIZES, initial_scale=rule) for rule in ("plain", "alone"))
    assert alone.widths == (64,) * 4 and alone.details["source_widths"] == list(plain.widths)
    assert alone.initial_scales == pytest.approx([(w / 64) ** 0.5 for w in plain.widths])
    louder = output_scales(alone.widths, alone.initial_scales)
    torch.testing.assert_close(louder, output_scales(plain.widths, None), rtol=0.12, atol=0)


@pytest.mark.parametrize("rule", ["width", "alone"])
def test_a_uniform_schedule_is_left_as_it_is(rule):
    assert allocate("uniform", **SIZES, initial_scale=rule).initial_scales == pytest.approx([1.0] * 4)


def test_controls_and_arms_take_it():
    arm = Arm.parse("reversed-cosine:initial_scale=width")
    found = allocate(arm.schedule, control=arm.control, **SIZES, **arm.options)
    assert found.initial_scales == pytest.approx([(64 / w) ** 0.5 for w in found.widths])
    assert found.name == "reversed:initial_scale=width"
    with pytest.raises(UserError, match="initial scale is 'loud'; allowed: plain, width, alone"):
        allocate("cosine", **SIZES, initial_scale="loud")


def test_only_readers_that_set_scales_take_such_a_schedule(tmp_path):
    found = allocate("cosine", **SIZES, initial_scale="width")
    found.write(tmp_path / "schedule.json")
    assert Schedule.read(tmp_path / "schedule.json").initial_scales == found.initial_scales
    with pytest.raises(UserError, match="states initial scales, which geowidth export does not set"):
        found.widths_for("geowidth export", layers=4, dimension=32, heads=2)
    with pytest.raises(UserError, match=r"initial scale of .* has 3 numbers for 4 layers"):
        Schedule.from_json(found.to_json() | {"details": {"initial_scales": [1.0, 1.0, 1.0]}})
    with pytest.raises(UserError, match="initial scale of layer 1 is 0"):
        short_training(tmp_path / "run", (1.0, 0.0, 1.0, 1.0))


def short_training(folder, scales, text=b"a text to learn by heart, over and over. " * 200):
    """A training of three steps of the smallest preset."""
    corpus = folder.with_suffix(".txt")
    corpus.write_bytes(text)
    return train("pico", None, 0, folder, steps=3, corpus=corpus, initial_scales=scales, watch=lambda *_: None)


def test_training_starts_from_the_scales_and_says_so(tmp_path):
    plain = short_training(tmp_path / "plain", None)
    ones = short_training(tmp_path / "ones", (1.0,) * 4)
    loud = short_training(tmp_path / "loud", (3.0, 1.0, 1.0, 1.0))
    assert "initial_scales" not in plain and loud["initial_scales"] == [3.0, 1.0, 1.0, 1.0]
    assert ones["loss"] == plain["loss"] != loud["loss"]
    with pytest.raises(UserError, match="was begun with"):
        short_training(tmp_path / "loud", None)


def test_one_arm_has_one_start(tmp_path):
    for seed, scales in ((0, None), (1, (2.0,) * 4)):
        corpus = tmp_path / "text.txt"
        corpus.write_bytes(b"a text to learn by heart, over and over. " * 200)
        out = tmp_path / f"uniform-{seed}"
        train("pico", None, seed, out, steps=2, corpus=corpus, initial_scales=scales, watch=lambda *_: None)
    with pytest.raises(UserError, match="arm uniform has different initial scales"):
        compare_folders([tmp_path / "uniform-0", tmp_path / "uniform-1"])


def test_a_preset_reads_the_widths_of_such_a_schedule():
    pico = preset_named("pico")
    found = allocate("cosine", layers=4, base_width=64, model_dimension=32, quantum=8, initial_scale="alone")
    assert pico.with_schedule(found, "geowidth train").model.widths == (64,) * 4
