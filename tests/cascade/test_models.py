"""Models A, F and AF at the uniform model's budget, uniform models that match them, and their way into a training."""

import dataclasses
import math

import pytest
import torch
from tiny_preset import TINY

from geowidth import cli, records
from geowidth.allocate import allocate
from geowidth.artifacts.schedule import Schedule
from geowidth.cascade import cascade_models, matched_uniform, write_cascade_models
from geowidth.cascade.models import forward_flops, fullest_steps
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.presets import M128, NANO, preset_named

PRESETS = {preset.name: preset.model for preset in (M128, NANO)}
GROUPED = ModelConfig(50, 6, 48, 12, (96,) * 6, 32, key_heads=4)


@pytest.mark.parametrize("name", PRESETS)
def test_tapers_spend_what_the_uniform_model_does(name):
    config = PRESETS[name]
    models = cascade_models(config, quantum=8)
    assert list(models) == ["uniform", "A", "F", "AF"] and models["uniform"].config == config
    for model in models.values():
        assert model.facts() == models["uniform"].facts()
        assert model.config.parameters == config.parameters and sum(model.config.heads_by_layer) == sum(
            config.heads_by_layer
        )


def test_which_part_is_tapered():
    config = M128.model
    models = cascade_models(config, quantum=64)
    a, f, af = (models[name].config for name in ("A", "F", "AF"))
    assert a.widths == config.widths and a.layer_heads == af.layer_heads
    assert f.layer_heads is None and f.widths == af.widths
    assert a.layer_heads == (18,) * 3 + (15,) * 3 + (12,) * 3 + (9,) * 3 + (6,) * 3
    assert all(width % 64 == 0 for width in f.widths)
    for layer, width in enumerate(f.widths):  # the line, to one quantum
        assert abs(width - 2048 * (1.5 - layer / 14)) <= 64


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_a_share_is_that_of_heads_and_ffns(share):
    config = M128.model
    models = cascade_models(config, share=share)
    for name, heads, ffn in (("A", share, 1.0), ("F", 1.0, share), ("AF", share, share)):
        found = models[name].config
        assert sum(found.heads_by_layer) <= round(heads * 180) and sum(found.heads_by_layer) > heads * 180 - 15
        assert 0 <= ffn - found.ffn_parameters / config.ffn_parameters < 1e-3
        facts = models[name].facts()
        assert facts["cache_bytes"] == 2 * 64 * 4 * sum(found.heads_by_layer)


def test_grouped_queries_keep_their_groups():
    for model in cascade_models(GROUPED).values():
        assert all(heads % 3 == 0 for heads in model.config.heads_by_layer)
        TaperedTransformer(model.config)(torch.zeros(1, 2, dtype=torch.int64))


def test_steps_that_leave_no_head():
    assert fullest_steps(M128.model) == 5
    heads = cascade_models(M128.model, steps=4)["A"].config.heads_by_layer
    assert sum(heads) < 180 and len(set(heads)) == 4
    assert fullest_steps(ModelConfig(10, 1, 8, 2, (8,), 8)) == 1


@pytest.mark.parametrize("by", ["parameters", "flops"])
@pytest.mark.parametrize("change", ["width", "depth"])
def test_matched_models_are_the_nearest(by, change):
    config = M128.model
    target = cascade_models(config, share=0.8)["AF"].config
    found = matched_uniform(config, target, by, change, length=300)
    cost = {"parameters": lambda c: c.parameters, "flops": lambda c: forward_flops(c, 300)}[by]
    step = 1 if change == "depth" else None
    near = []
    for more in (-1, 1):
        if change == "depth":
            layers = found.config.layers + more * step
            near.append(dataclasses.replace(config, layers=layers, widths=config.widths[:1] * layers))
        else:
            near.append(dataclasses.replace(config, widths=(found.config.widths[0] + more,) * 15))
    off = abs(cost(found.config) - cost(target))
    assert all(off <= abs(cost(other) - cost(target)) for other in near)
    assert found.name == f"uniform-{change}-{by}" and (found.schedule is None) == (change == "depth")
    assert len(set(found.config.widths)) == 1 and found.config.layer_heads is None


def test_a_share_of_whole_layers_is_a_model_of_fewer_layers():
    """Four fifths of 15 layers are 12: equal in parameters of blocks, FLOPs and bytes of keys and values."""
    config = M128.model
    tapered = cascade_models(config, share=0.8)["AF"]
    short = matched_uniform(config, tapered.config, change="depth")
    assert short.config.layers == 12
    norms = 3 * 2 * config.dimension
    # FFN rows are whole: each of 15 layers may leave part of one, and of what is left less than one row is affordable.
    row = config.projections * config.dimension
    assert -row < tapered.config.parameters - norms - short.config.parameters <= 0
    assert tapered.facts()["cache_bytes"] == short.facts()["cache_bytes"]


def test_forward_flops_are_what_a_count_of_multiplications_gives():
    config = cascade_models(GROUPED)["AF"].config
    length, total = 7, 2 * config.vocabulary * config.dimension
    for layer in range(config.layers):
        heads, keys = config.heads_by_layer[layer], config.key_heads_by_layer[layer]
        total += 2 * config.dimension * 4 * (heads + 2 * keys) + 2 * heads * 4 * config.dimension
        total += 2 * 3 * config.dimension * config.widths[layer]
        pairs = sum(range(1, length + 1)) / length
        total += 4 * heads * 4 * pairs
    assert forward_flops(config, length) == math.floor(total)


def test_schedules_build_the_same_models_from_the_preset():
    preset = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, layers=4, widths=(24,) * 4))
    for model in cascade_models(preset.model, share=0.75).values():
        assert preset.with_schedule(model.schedule, "a test").model == model.config
        assert type(model.schedule).from_json(model.schedule.to_json()) == model.schedule


def test_files_train_the_models_they_say(tmp_path):
    record = write_cascade_models("nano", tmp_path / "out", share=0.75)
    assert len(record["models"]) == 8 and records.read_json(tmp_path / "out" / "models.json") == record
    for name, facts in record["models"].items():
        path = tmp_path / "out" / f"{name}.json"
        if facts["file"] == "schedule":
            config = NANO.with_schedule(Schedule.read(path), "a test").model
        else:
            preset = preset_named(path)
            assert preset.training == NANO.training and preset.name == f"nano-{name}"
            config = preset.model
        assert (config.layers, list(config.widths)) == (facts["layers"], facts["widths"])
        assert list(config.heads_by_layer) == facts["heads"]
        assert config.parameters == facts["parameters"]
        assert facts["over_uniform"]["parameters"] == config.parameters / NANO.model.parameters
    assert record["models"]["uniform-depth-flops"]["layers"] == 6
    with pytest.raises(UserError, match="exists already"):
        write_cascade_models("nano", tmp_path / "out")


def test_all_widths_that_are_written_are_multiples(tmp_path):
    record = write_cascade_models("nano", tmp_path / "out", share=0.7, quantum=32)
    for name, facts in record["models"].items():
        assert all(width % 32 == 0 for width in facts["widths"])
        if facts["file"] == "schedule":
            assert all(width % 32 == 0 for width in Schedule.read(tmp_path / "out" / f"{name}.json").widths)


def test_the_command_writes_models_and_says_what_they_cost(tmp_path, capsys):
    out = tmp_path / "models"
    words = ["--share", "0.75", "--multiple", "4", "--levels", "2", "--end", "0.6", "--out", str(out)]
    assert cli.main(["cascade", "models", "--preset", "nano", *words]) == 0
    said, record = capsys.readouterr().out, records.read_json(out / "models.json")
    assert record["options"] == {"steps": 2, "quantum": 4, "start": 1.5, "end": 0.6, "share": 0.75}
    assert len(set(record["models"]["A"]["heads"])) == 2 and sum(record["models"]["A"]["heads"]) == 12
    for name, facts in record["models"].items():
        line = next(line for line in said.splitlines() if line.startswith(f"{name} "))
        assert f"{facts['parameters']:,}" in line and f"{facts['over_uniform']['cache_bytes']:.3f}" in line
        assert (out / f"{name}.json").is_file()
        assert all(width % 4 == 0 for width in facts["widths"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["some/model"], "makes its own models; leave out some/model"),
        (["--corpus", "x"], "--corpus came with cascade models"),
        (["--dry-run"], "--dry-run came with cascade models"),
        (["--share", "1.5"], "share is 1.5; allowed: numbers above 0, up to 1"),
        (["--levels", "0"], "--levels is 0"),
    ],
)
def test_words_that_models_have_no_use_for(words, line, tmp_path, capsys):
    assert cli.main(["cascade", "models", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert line in said.err and said.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_allocate_takes_a_share_of_the_heads():
    options = {"layers": 10, "base_width": 32, "taper": "both", "heads": 10}
    assert sum(allocate("cascade", share=0.7, steps=5, **options).heads) == 70
    assert sum(allocate("cascade", share=0.01, **options).heads) == 10  # a head in every layer
    for share in (0, 1.5, "much"):
        with pytest.raises(UserError, match="share is .*; allowed: numbers above 0, up to 1"):
            allocate("cascade", share=share, **options)
    with pytest.raises(UserError, match="share came with taper 'ffn'"):
        allocate("cascade", layers=10, base_width=32, share=0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": (8, 16, 8, 8)}, "layers of different sizes"),
        ({"layer_heads": (4, 2, 2, 1)}, "layers of different sizes"),
        ({"repeat_last": 1, "repeat_times": 2}, "applies its last 1 blocks 2 times"),
    ],
)
def test_what_is_not_uniform_is_refused(change, words):
    config = dataclasses.replace(ModelConfig(20, 4, 16, 2, (8,) * 4, 16), **change)
    with pytest.raises(UserError, match=words):
        cascade_models(config)


def test_a_match_that_does_not_exist_is_refused():
    config = M128.model
    with pytest.raises(UserError, match="no uniform model has as few parameters"):
        matched_uniform(config, dataclasses.replace(config, vocabulary=1, layers=1, widths=(8,)))
    for change in ({"by": "time"}, {"change": "heads"}):
        with pytest.raises(UserError, match="allowed: "):
            matched_uniform(config, config, **change)
