"""benchmarks.device: its rehearsal, and what it does when a stage fails, dies or hangs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import device
from benchmarks.device_stages import sanitizer, supervisor
from benchmarks.device_stages.session import Session, quantiles, race
from benchmarks.schema import read_rows

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def session(tmp_path):
    return Session(60, True, tmp_path / "rows.csv", tmp_path / "state.json")


def test_a_failing_stage_loses_nothing(session):
    def good(session):
        session.add("an_op", "ours", "a mode", "wall", "n", 7, p50=0.5)
        session.judge("an_op", "ours", "a mode", 7, 1e-7, 1e-6)

    def bad(session):
        session.judge("an_op", "ours", "a mode", 11, float("nan"), 1e-6)
        raise ValueError("on\ntwo lines")

    assert session.run("m.good", good, 1) and session.run("m.bad", bad, 1)
    found = read_rows(session.csv)
    assert [r.x_value for r in found] == [7, 7, 11] and found[2].note.startswith("WRONG")
    assert session.wrong == ["an_op, ours, a mode, n=11: error nan, allowed 1e-06"]
    assert session.errors == ["m.bad: ValueError: on two lines"]
    again = Session(60, True, session.csv, session.json)
    again.resume()
    assert (again.wrong, again.errors, len(again.rows)) == (session.wrong, session.errors, 3)
    assert set(again.facts["seconds"]) == {"m.good", "m.bad"}


def test_race_leaves_out_what_fails(session):
    def broken():
        raise RuntimeError("not here")

    times = race(session, {"a": lambda: None, "b": broken})
    assert list(times) == ["a"] and "timing b" in session.errors[0]
    assert quantiles([1.0, 2.0, 3.0, 4.0, 5.0]) == {"p20": 2.0, "p50": 3.0, "p80": 5.0}


WORKER = """
import json, os, signal, sys, time
path, *names = sys.argv[1:]
state = {"table": [], "wrong": [], "errors": [], "facts": {"seconds": {}}}
if os.path.exists(path):
    state = json.load(open(path))
def save(running):
    with open(path + ".new", "w") as file:
        json.dump(state | {"running": running}, file)
    os.replace(path + ".new", path)
for name in names:
    save(name)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hangs":
        time.sleep(60)
    state["table"].append(name)
    state["facts"]["seconds"][name] = 0
save(None)
"""


def test_a_stage_that_dies_or_hangs_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "POLL", 0.05)
    state, resumed = tmp_path / "state.json", []

    def command(names, seconds, resume):
        resumed.append(resume)
        return [sys.executable, "-c", WORKER, str(state), *names]

    stages = [(name, 0, 1.0) for name in ("first", "dies", "second", "hangs", "third")]
    found = supervisor.supervise(stages, command, state, 60)
    assert resumed == [False, True, True]
    assert [line for line in found["table"] if "failed" not in line] == ["first", "second", "third"]
    assert found["errors"] == ["dies: its process ended with -11", "hangs: stopped after 1.0 s"]


def test_workers_that_cannot_start_are_not_started_for_ever(tmp_path):
    calls = []

    def command(names, seconds, resume):
        calls.append(names)
        return [sys.executable, "-c", "raise SystemExit(4)"]

    found = supervisor.supervise([("a", 0, 9), ("b", 0, 9)], command, tmp_path / "state.json", 60)
    assert len(calls) == 1 and found["errors"] == ["start: its process ended with 4"]
    with pytest.raises(SystemExit) as stop:
        supervisor.supervise(
            [("a", 0, 9)], lambda *_: [sys.executable, "-c", "raise SystemExit(2)"], tmp_path / "s", 60
        )
    assert stop.value.code == 2


def test_options(capsys):
    arguments = device.parse(["--only", "ffn.timings", "--csv", "rows.csv"])
    assert arguments.json == Path("rows.json") and [name for name, *_ in device.chosen(arguments)] == ["ffn.timings"]
    assert device.parse(["--rehearse"]).csv is None
    assert device.chosen(device.parse([]))[0][0] == "machine.build"
    assert device.chosen(device.parse(["--no-build"]))[0][0] == "machine.facts"
    with pytest.raises(SystemExit):
        device.parse(["--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err


def test_every_stage_is_there():
    from importlib import import_module

    for name, least, most in device.STAGES:
        module, function = name.split(".")
        stage = getattr(import_module(f"benchmarks.device_stages.{module}"), function)
        assert stage.__doc__ and 0 < least <= most


def test_the_rehearsal_of_cheap_stages_emulated(tmp_path):
    command = [sys.executable, "-m", "benchmarks.device", "--rehearse", "--csv", tmp_path / "device.csv", "--only"]
    stages = ["machine.ceilings", "gromov.correctness", "sinkhorn.timings", "pipeline.measurement"]
    done = subprocess.run([*command, *stages], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "device.txt").read_text().splitlines()[-2:] == ["wrong: 0", "errors: 0"]
    rows = read_rows(tmp_path / "device.csv")
    assert {r.provider for r in rows if r.op == "gromov_wasserstein"} == {"cuda"}
    assert {r.provider for r in rows if r.op == "sinkhorn"} == {"cuda, resident", "cuda, streaming"}
    facts = json.loads((tmp_path / "device.json").read_text())
    assert set(facts["facts"]["seconds"]) == set(stages) and facts["running"] is None


def test_without_a_gpu_it_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [ROOT / "benchmarks" / "device.sh", "--csv", "none.csv"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "no CUDA device is visible" in done.stderr, done.stdout + done.stderr


def test_the_sanitizer_stage_runs_every_kernel_emulated(monkeypatch):
    pytest.importorskip("pybind11")
    from benchmarks.device_stages import rehearsal

    undo = rehearsal.install()
    try:
        sanitizer.every_kernel("cpu")
    finally:
        undo()
