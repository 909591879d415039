"""`geowidth plan`: what can be counted is exact, the probe answers, bad input is one line."""

import json

import pytest

from geowidth.allocate import allocate
from geowidth.cli import main
from geowidth.models.config import ModelConfig, training_flops
from geowidth.models.presets import NANO
from geowidth.models.transformer import TaperedTransformer
from geowidth.plan.estimation import estimate, extrapolate, parameter_count
from geowidth.plan.probe import probe_measurement, probe_training, run_probe
from geowidth.progress import size
from geowidth.train.processes import default_processes


def fake_probe(request):
    """Answers that make the arithmetic easy to follow."""
    if request["probe"] == "training":
        return {"step": 0.5, "window": 0.01, "peak_bytes": 1000}
    return {"seconds": [float(s) for s in request["sizes"]], "window": 0.001, "peak_bytes": 2000}


@pytest.fixture
def probed(monkeypatch):
    """The command without its probe process."""
    monkeypatch.setattr("geowidth.plan.estimation.run_probe", fake_probe)


@pytest.mark.parametrize("widths", [(8, 16), (0, 3)])
def test_parameters_are_those_of_the_built_model(widths):
    config = ModelConfig(50, 2, 16, 2, widths, 8)
    assert parameter_count(config) == TaperedTransformer(config).parameter_count()


def test_training_arithmetic():
    found = estimate("train", NANO, steps=100, probe=fake_probe)
    tokens = 100 * NANO.training.batch * NANO.model.context
    assert found.flops == training_flops(NANO.model, tokens) and found.models == 1
    windows = NANO.training.evaluations * NANO.training.evaluation_windows
    assert found.facts["seconds_per_model"] == pytest.approx(100 * 0.5 + windows * 0.01)
    assert found.seconds == pytest.approx(4.0 + found.facts["seconds_per_model"])
    assert found.disk == 16 * found.parameters and found.memory == 1000
    four = estimate("train", NANO, models=[NANO.model.widths] * 4, steps=100, processes=2, probe=fake_probe)
    assert four.flops == 4 * found.flops and four.memory == 2000
    assert four.seconds - 4.0 == pytest.approx(2 * (found.seconds - 4.0))


def test_runs_measure_too_and_calibrations_name_the_widest_model():
    run = estimate("run", NANO, models=[NANO.model.widths] * 2, tokens=64, probe=fake_probe)
    measure = estimate("measure", NANO, tokens=64, probe=fake_probe)
    train = estimate("train", NANO, models=[NANO.model.widths] * 2, probe=fake_probe)
    assert run.seconds == pytest.approx(measure.seconds + train.seconds + 4.0)  # workers start twice
    assert run.files == [*train.files, "work.json"] and measure.models == 0
    wide = (1024, *NANO.model.widths[1:])
    found = estimate("calibrate", NANO, models=[NANO.model.widths, wide], tokens=64, probe=fake_probe)
    assert found.parameters == parameter_count(NANO.with_widths(wide))


def test_extrapolation_follows_the_power_law_within_bounds():
    assert extrapolate([64, 128], [1.0, 5.0], 128) == 5.0
    assert extrapolate([64, 128], [1.0, 2**2.5], 256) == pytest.approx(2**5.0)
    assert extrapolate([64, 128], [1.0, 100.0], 256) == pytest.approx(800.0)
    assert extrapolate([64, 128], [1.0, 1.0], 256) == pytest.approx(4.0)


def test_probes_in_this_process():
    model = ModelConfig(64, 2, 16, 2, (8, 8), 8)
    training = NANO.with_training(batch=2, microbatch=2)
    found = probe_training(model, training, seconds=0.01)
    assert found["window"] > 0 and found["step"] > 0
    assert all(t > 0 for t in probe_measurement(model, [8, 16])["seconds"])


def test_the_probe_process_answers_and_says_why_it_fails():
    model = ModelConfig(64, 2, 16, 2, (8, 8), 8)
    found = run_probe({"probe": "measurement", "model": model.to_json(), "sizes": [8]})
    assert found["peak_bytes"] > 10**7 and len(found["seconds"]) == 1
    with pytest.raises(RuntimeError, match="probe failed"):
        run_probe({"probe": "training", "model": {}, "training": {}})


def test_the_command_in_words_and_json(probed, capsys, tmp_path):
    for task in ("train", "measure", "calibrate", "run"):
        assert main(["plan", task]) == 0
        text = capsys.readouterr().out
        assert "parameters:" in text and "FLOPs:" in text and "memory:" in text and "time:" in text
        assert ("trainings:" in text) == (task != "measure")
    path = tmp_path / "schedule.json"
    allocate("cosine", layers=8, base_width=512, quantum=8).write(path)
    assert main(["plan", "train", "--schedule", str(path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ffn_parameters"] == 3 * NANO.model.dimension * 512 * 8
    assert main(["plan", "run", "--arms", "uniform", "cosine", "--seeds", "0", "1", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "task is 'fly'; allowed: train, measure, calibrate, run"),
        (["train", "--preset", "nono"], "preset is 'nono'"),
        (["train", "--steps", "0"], "--steps is 0"),
        (["measure", "--tokens", "3"], "--tokens is 3"),
        (["run", "--processes", "0"], "--processes is 0"),
        (["train", "--seeds", "0"], "--seeds came with plan train"),
        (["measure", "--steps", "5"], "--steps came with plan measure"),
        (["train", "--tokens", "64"], "--tokens came with plan train"),
        (["train", "--processes", "2"], "--processes came with plan train"),
        (["run", "--factors", "2"], "--factors came with plan run"),
        (["run", "--arms", "fast"], "arm is 'fast'"),
        (["calibrate", "--factors", "2"], "two or more different"),
        (["train", "--schedule", "nowhere.json"], "cannot read nowhere.json"),
    ],
)
def test_bad_requests(probed, capsys, words, message):
    assert main(["plan", *words]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and message in found.err


def test_sizes_in_words():
    assert [size(n) for n in (12, 3400, 5_600_000, 7.8e12)] == ["12 B", "3.4 kB", "5.6 MB", "7.8e+03 GB"]


def test_a_sweep_elsewhere_takes_this_machines_memory_for_measuring_alone(probed, capsys):
    four = [NANO.model.widths] * 4
    here = estimate("run", NANO, models=four, tokens=64, processes=2, probe=fake_probe)
    there = estimate("run", NANO, models=four, tokens=64, processes=2, elsewhere=True, probe=fake_probe)
    measured = estimate("measure", NANO, tokens=64, processes=default_processes(), probe=fake_probe)
    assert there.memory == measured.memory and there.facts["worker_bytes"] == 1000 and here.facts["processes"] == 2
    assert main(["plan", "run", "--preset", "nano", "--seeds", "0", "--on", "dask://host:1", "--processes", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("each, 3 side by side") and lines[4].endswith("; about 1 kB on a worker for each training")
    assert main(["plan", "measure", "--on", "local"]) == 2
    assert "--on came with plan measure" in capsys.readouterr().err
