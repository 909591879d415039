"""What a training takes, told before it: the numbers of the model that would be built, and the table of presets."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from geowidth import cli, records
from geowidth.allocate import allocate
from geowidth.models import TaperedTransformer
from geowidth.models.config import training_flops
from geowidth.models.presets import PRESETS, preset_named
from geowidth.plan.footprint import footprint
from geowidth.plan.training import days, plan_training, preset_rows, preset_table, product_speed, time_here
from geowidth.train.supervision import run_flops


def never(request):
    raise AssertionError("nothing is timed here")


@pytest.mark.parametrize("name", ["nano", "128m", "1.2b"])
def test_the_plan_is_of_the_model_that_would_be_built(name):
    preset = preset_named(name)
    plan = plan_training(preset)
    with torch.device("meta"):
        built = TaperedTransformer(preset.model, seed=None)
    assert f"{built.parameter_count():,}," in "\n".join(plan.lines())
    assert plan.tokens == preset.training.steps * preset.training.batch * preset.model.context
    assert plan.flops == training_flops(preset.model, plan.tokens)
    assert plan.gpu_seconds == pytest.approx(plan.flops / (0.4 * 989e12))
    assert plan.footprint == footprint(preset.model, preset.training)


def test_interventions_are_counted_and_told():
    nano = preset_named("nano").with_repeats(2, 3)
    changes = {"exit_loss": 1.0, "exit_weights": "equal", "exit_curriculum": "rotational", "layer_dropout": 0.25}
    preset = replace(nano, training=nano.with_training(**changes, exit_period=2, equal_gradients=True))
    plan, told = plan_training(preset), plan_training(nano)
    said = next(line for line in plan.lines() if line.startswith("gradients:"))
    assert said.split(maxsplit=1)[1] == (
        "the last 2 blocks 3 times; gradients of all blocks at one norm; "
        "6.5 exits a step, the last among them (equal); layer dropout up to 0.25"
    )
    assert plan.flops == run_flops(preset.model, preset.training) != told.flops
    assert plan.footprint.logits == 7 * told.footprint.logits
    assert not any(line.startswith("gradients:") for line in plan_training(preset_named("nano")).lines())


def test_small_models_are_timed_by_whole_steps_of_one_sequence():
    asked = []

    def probe(request):
        asked.append(request)
        return {"step": 0.5, "window": 0.25, "peak_bytes": 1}

    pico = preset_named("pico")
    found = time_here(plan_training(pico), probe=probe)
    settings = pico.training
    wanted = settings.steps * settings.batch * 0.5 + settings.evaluations * settings.evaluation_windows * 0.25
    assert found.here_seconds == wanted and asked[0]["training"]["batch"] == 1
    assert asked[0]["model"] == pico.model.to_json()


def test_large_models_are_never_run(monkeypatch):
    from geowidth.plan import training

    monkeypatch.setattr(training, "product_speed", lambda *_: 1e12)
    plan = plan_training(preset_named("440m"))
    found = time_here(plan, probe=never)
    assert found.here_seconds == plan.flops / 1e12 and "at least" in found.lines()[-1]


def test_the_speed_of_products_is_a_speed():
    assert 1e6 < product_speed(preset_named("pico").model, preset_named("pico").training) < 1e16


def test_dry_run_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    from geowidth.plan import training

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "product_speed", lambda *_: 1e12)
    schedule = allocate("cascade", layers=15, base_width=2048, quantum=64, taper="both", heads=12)
    schedule.write("schedule.json")
    assert cli.main(["train", "--preset", "128m", "--dry-run"]) == 0
    plain = capsys.readouterr().out
    for words in ("parameters:  130,768,128,", "FLOPs:", "memory:", "time:", "tokens:", "schedule:", "2,048 in every"):
        assert words in plain
    words = ["train", "--preset", "128m", "--dry-run", "--schedule", "schedule.json", "--vocabulary", "50304"]
    assert cli.main([*words, "--steps", "10", "--batch", "64", "--out", "runs/x"]) == 0
    tapered = capsys.readouterr().out
    assert "vocabulary 50,304" in tapered and "10 steps of 64 x 1,024 in 2 pieces" in tapered
    assert " ".join(map(str, schedule.widths)) in tapered and " ".join(map(str, schedule.heads)) in tapered
    assert sorted(path.name for path in tmp_path.iterdir()) == ["schedule.json"]


def test_dry_run_refuses_what_the_training_would(tmp_path, capsys):
    assert cli.main(["train", "--preset", "128m", "--dry-run", "--schedule", str(tmp_path / "none.json")]) == 2
    assert cli.main(["plan", "presets", "--steps", "3"]) == 2
    assert cli.main(["plan", "presets", "--preset", "pico"]) == 2
    assert "--preset came with plan presets" in capsys.readouterr().err


def test_the_table_of_presets_is_that_of_the_code(capsys):
    assert cli.main(["plan", "presets"]) == 0
    printed = capsys.readouterr().out
    rows = {line.split(" | ")[0].strip("| "): line for line in printed.splitlines()[2:]}
    assert set(rows) == set(PRESETS)
    cells = rows["128m"].strip("| ").split(" | ")
    assert cells[1:7] == ["130.8M", "15", "768", "12", "2048", "1024"]
    assert printed.strip() == preset_table(preset_rows(PRESETS.values()))
    assert cli.main(["plan", "presets", "--json"]) == 0
    assert records.loads(capsys.readouterr().out) == records.loads(records.dumps(preset_rows(PRESETS.values())))


def test_the_committed_table_of_presets_is_printed_today():
    """benchmarks/presets.md, which the README shows: `geowidth plan presets > benchmarks/presets.md`."""
    committed = (Path(__file__).parents[2] / "benchmarks" / "presets.md").read_text(encoding="utf-8")
    named = [line.split(" | ")[0].strip("| ") for line in committed.splitlines()[2:]]
    assert named == ["pico", "nano", "mini", "128m", "256m", "440m", "1.2b"]
    assert committed.strip() == preset_table(preset_rows(PRESETS[name] for name in named))


def test_many_seconds_are_days():
    assert days(100) == "1 min 40 s" and days(864000) == "10 days"


def test_a_vocabulary_of_ones_own():
    preset = preset_named("128m")
    assert preset.with_vocabulary(None) is preset
    assert preset.with_vocabulary(50304).model == replace(preset.model, vocabulary=50304)


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"recompute": "block"}])
def test_timed_steps_are_those_of_the_settings(change, monkeypatch):
    from geowidth.plan import probe

    seen = []
    whole = TaperedTransformer.forward

    def watched(model, *arguments):
        norm = model.norm.compute_dtype
        seen.append({"dtype": "bfloat16" if norm else "float32", "recompute": model._recompute_blocks and "block"})
        return whole(model, *arguments)

    monkeypatch.setattr(TaperedTransformer, "forward", watched)
    pico = preset_named("pico")
    probe.probe_training(pico.model, replace(pico.training, batch=1, microbatch=1, **change), seconds=0.01)
    name, value = next(iter(change.items()))
    assert seen and all(one[name] == value for one in seen)
