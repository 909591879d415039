"""The whole chain on a model small enough for a test: results, resumption, equal bits, refusals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from geowidth import cli, records
from geowidth.chain import resolve, run_chain
from geowidth.errors import UserError
from geowidth.measure import WorkProfile

PLAN = dict(preset="pico", seeds=[0, 1], steps=6, tokens=48)
COMMAND = [sys.executable, "-m", "geowidth", "run", "--preset", "pico", "--seeds", "0", "1", "--steps", "6"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run folder."""
    folder = tmp_path_factory.mktemp("runs") / "a run ü"
    run_chain(resolve(**PLAN), folder, processes=2)
    return folder


def numbers(folder):
    """Everything of a run that must repeat bit for bit."""
    comparison = records.read_json(folder / "comparison.json")
    losses = {arm["arm"]: arm["losses"] for arm in comparison["arms"]}
    work = WorkProfile.read(folder / "work.json")
    schedules = {p.name: records.read_json(p)["widths"] for p in (folder / "schedules").iterdir()}
    return losses, work.work, work.dimension, schedules


def test_the_folder_holds_every_result(finished):
    work = WorkProfile.read(finished / "work.json")
    assert set(work.work) == {"raw", "spherical", "hyperbolic"}
    for statistics in work.work.values():
        assert set(statistics) == {"shift", "gw", "topology"}
        assert all(len(signal) == work.layers and min(signal) >= 0 for signal in statistics.values())
    comparison = records.read_json(finished / "comparison.json", "geowidth.comparison")
    assert [arm["arm"] for arm in comparison["arms"]] == ["uniform", "cosine", "geometry", "reversed"]
    assert len({arm["tokens"] for arm in comparison["arms"]}) == 1
    budget = comparison["arms"][0]["parameters"]
    assert all(arm["parameters"] <= budget for arm in comparison["arms"])
    geometry, reverse = (
        records.read_json(finished / "schedules" / f"{name}.json")["widths"] for name in ("geometry", "reversed")
    )
    assert geometry == reverse[::-1]
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 4 and comparison["sentence"].split(":")[0] in page


def test_every_json_is_strict(finished):
    def refuse(word):
        raise AssertionError(f"bare {word}")

    files = [*finished.rglob("*.json")]
    assert len(files) > 10
    for path in files:
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_killed_run_goes_on_to_the_same_numbers(finished, tmp_path):
    folder = tmp_path / "killed"
    command = [*COMMAND, "--tokens", "48", "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(folder.glob("arms/*/*/result.json"))) < 3:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "comparison.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"report: {folder / 'report.html'}")
    assert numbers(folder) == numbers(finished)


def test_running_again_only_redraws(finished, capsys):
    before = numbers(finished)
    stamps = {p: p.stat().st_mtime_ns for p in finished.glob("arms/*/*/model.safetensors")}
    assert cli.main([*COMMAND[3:], "--tokens", "48", "--out", str(finished)]) == 0
    assert numbers(finished) == before
    assert stamps == {p: p.stat().st_mtime_ns for p in finished.glob("arms/*/*/model.safetensors")}
    assert "report: " in capsys.readouterr().out


def test_another_plan_in_the_same_folder_is_refused(finished, capsys):
    assert cli.main([*COMMAND[3:], "--tokens", "50", "--out", str(finished)]) == 2
    assert "tokens 48, not 50" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"preset": "giant"},
        {"arms": ["cosine"]},
        {"arms": ["uniform", "uniform"]},
        {"arms": ["uniform", "sideways"]},
        {"seeds": [0, 0]},
        {"seeds": [-1]},
        {"steps": 0},
        {"tokens": 3},
        {"geometry": "flat"},
        {"statistic": "mass"},
    ],
)
def test_bad_plans_stop_before_work(change):
    with pytest.raises(UserError):
        resolve(**{**PLAN, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--processes", "0"], "processes is 0"),
        (["--corpus", "nowhere"], "'nowhere' does not exist"),
        (["--corpus", "short.txt"], "one window takes 33: give more text"),
        (["--tokens", "100000000"], "100000000 tokens asked for, but the corpus's test split has at most"),
    ],
)
@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_what_corpus_and_machine_cannot_give_stops_before_anything_is_written(
    command, change, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("forty bytes of text are not one window..")
    assert cli.main([command, "--preset", "pico", *change]) == 2
    found = capsys.readouterr()
    assert words in found.err and found.err.count("\n") == 1 and not found.out
    assert [p.name for p in tmp_path.iterdir()] == ["short.txt"]


def test_measuring_leaves_nothing_behind_when_refused(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = str(finished / "arms" / "uniform" / "seed-0")
    for words, message in (
        (["--geometries", "raw", "raw"], "each once"),
        (["--seed", "-1"], "seed is -1"),
        (["--context", "33"], "takes at most 32"),
        (["--save-clouds", "clouds.bin"], "--save-clouds is clouds.bin"),
        (["--plot", "work.png"], "--plot is work.png"),
        (["--windows", "1", "--tokens", "48"], "48 tokens asked for"),
    ):
        assert cli.main(["measure", model, *words]) == 2
        found = capsys.readouterr()
        assert message in found.err and found.err.count("\n") == 1 and not found.out
    assert not any(tmp_path.iterdir())


def test_saved_clouds_give_the_same_work_and_take_no_drawing_options(finished, tmp_path, capsys):
    clouds, first, second = (str(tmp_path / name) for name in ("c.safetensors", "a.json", "b.json"))
    model = str(finished / "arms" / "uniform" / "seed-0")
    assert cli.main(["measure", model, "--tokens", "24", "--save-clouds", clouds, "--out", first]) == 0
    assert cli.main(["measure", clouds, "--out", second]) == 0
    assert WorkProfile.read(first).work == WorkProfile.read(second).work
    capsys.readouterr()
    for words in (["--tokens", "8"], ["--corpus", "stdlib"], ["--download"], ["--context", "8"]):
        assert cli.main(["measure", clouds, *words, "--out", str(tmp_path / "c.json")]) == 2
        assert f"{words[0]} came with saved clouds" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


def test_stages_work_alone_from_files(finished, tmp_path, capsys):
    model = str(finished / "arms" / "uniform" / "seed-0")
    work, schedule = str(tmp_path / "work.json"), str(tmp_path / "schedule.json")
    assert cli.main(["measure", model, "--tokens", "48", "--out", work]) == 0
    assert WorkProfile.read(work).work == WorkProfile.read(finished / "work.json").work
    arguments = ["--schedule", "geometry", "--work", work, "--multiple", "8", "--out", schedule]
    assert cli.main(["allocate", *arguments]) == 0
    widths = records.read_json(schedule)["widths"]
    assert widths == records.read_json(finished / "schedules" / "geometry.json")["widths"]
    trained = str(tmp_path / "trained")
    arguments = ["--preset", "pico", "--schedule", schedule, "--steps", "6", "--seed", "0", "--out", trained]
    assert cli.main(["train", *arguments]) == 0
    lines = (tmp_path / "trained" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [records.loads(line) for line in lines]
    assert {"step", "split", "loss", "tokens", "seconds"} <= set(metrics[-1])
    assert cli.main(["report", str(finished)]) == 0
    capsys.readouterr()


def test_measuring_an_unfinished_training_says_so(finished, tmp_path, capsys):
    import shutil

    folder = tmp_path / "begun"
    shutil.copytree(finished / "arms" / "uniform" / "seed-0", folder)
    for name in ("model.json", "model.safetensors", "result.json"):
        (folder / name).unlink()
    assert cli.main(["measure", str(folder), "--out", str(tmp_path / "w.json")]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_measuring_refuses_a_model_with_nan(finished, tmp_path, capsys):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "broken"
    shutil.copytree(finished / "arms" / "uniform" / "seed-0", folder)
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    assert cli.main(["measure", str(folder), "--out", str(tmp_path / "w.json")]) == 2
    error = capsys.readouterr().err
    assert name in error and error.count("\n") == 1
    assert not (tmp_path / "w.json").exists()
