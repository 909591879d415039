"""Many trainings at once: the bits of one at a time, and no orphans, hangs or losses when something dies."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_preset import TINY

from geowidth import files
from geowidth.errors import UserError
from geowidth.train import TrainJob, checkpoint, crew, processes, state, train, train_many

HERE = Path(__file__).resolve().parent

# A parent to be killed. Arguments: folder, corpus, steps, processes.
PARENT = """
import sys
from pathlib import Path
sys.path[:0] = {tests!r}
from test_parallel import jobs
from geowidth.train import train_many
train_many(jobs(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])), int(sys.argv[4]), save_seconds=0)
"""


def jobs(folder, corpus, steps=None, seeds=(0, 1)):
    return [TrainJob(folder / f"s{s}", (30, 18), s, "cosine", TINY, steps, corpus) for s in seeds]


def nothing(*_):
    """Watch a training without a word."""


def weights(folder, seeds=(0, 1)):
    return [(folder / f"s{s}" / "model.safetensors").read_bytes() for s in seeds]


def free(folder):
    """Whether no process holds a training folder."""
    with open(folder / ".lock") as file:
        return files.lock(file)


def start_parent(folder, text, steps, processes):
    code = PARENT.format(tests=[str(HERE), str(HERE.parent)])
    arguments = [sys.executable, "-c", code, *map(str, (folder, text, steps, processes))]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def wait_for_states(folder, process, names=("s0", "s1")):
    """Until each has a state, or all have ended: on a busy machine they may be done before anybody looks."""
    until = time.monotonic() + 300
    while any(state.saved_step(folder / name) < 10 for name in names):
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read()
            return
        assert time.monotonic() < until, "no state was written"
        time.sleep(0.02)


def test_same_bits_as_one_at_a_time_whatever_the_number_of_processes(text, tmp_path, capfd):
    seeds = (0, 1, 2)
    results = train_many(jobs(tmp_path / "many", text, seeds=seeds), 2)
    assert [r["seed"] for r in results] == [0, 1, 2]
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith("train: 36/36 steps") and "loss" in lines[-1] and "tokens/s" in lines[-1]
    for job in jobs(tmp_path / "one", text, seeds=seeds):
        train(job.preset, job.widths, job.seed, job.out, arm=job.arm, corpus=job.corpus, watch=nothing)
    assert weights(tmp_path / "many", seeds) == weights(tmp_path / "one", seeds)
    assert [r["loss"] for r in results] == [checkpoint.read_result(tmp_path / "one" / f"s{s}")["loss"] for s in seeds]


def test_finished_jobs_are_skipped(text, tmp_path, monkeypatch):
    job = jobs(tmp_path, text)[0]
    result = train(job.preset, job.widths, job.seed, job.out, arm=job.arm, corpus=job.corpus, watch=nothing)
    monkeypatch.setattr(crew, "Worker", pytest.fail)
    assert train_many([job]) == [result]
    assert train_many([]) == []


def test_a_killed_parent_leaves_no_workers(text, tmp_path):
    folder, steps = killed(tmp_path, text)
    until = time.monotonic() + 120
    while not free(folder / "s0"):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.02)
    assert 10 <= state.saved_step(folder / "s0") < steps


def killed(tmp_path, text):
    """(folder, steps) of trainings whose parent was killed; longer ones where it had ended before."""
    for steps in (2000, 10_000, 50_000):
        folder = tmp_path / f"killed-{steps}"
        parent = start_parent(folder, text, steps, 1)
        wait_for_states(folder, parent, ["s0"])
        parent.kill()
        parent.communicate()
        if parent.returncode == -signal.SIGKILL and not (folder / "s0" / "result.json").exists():
            return folder, steps
    raise AssertionError("no training was long enough to be killed")


def test_control_c_stops_all_and_everything_goes_on(text, tmp_path):
    cut, steps = interrupted(tmp_path, text)
    assert all(free(cut / name) for name in ("s0", "s1"))
    for folder in (cut, tmp_path / "whole"):
        for job in jobs(folder, text, steps):
            train(job.preset, job.widths, job.seed, job.out, steps=steps, arm="cosine", corpus=text, watch=nothing)
    assert weights(cut) == weights(tmp_path / "whole")


def interrupted(tmp_path, text):
    """(folder, steps) of trainings that Ctrl-C stopped; longer ones where it came after their end."""
    for steps in (200, 1000, 5000):
        cut = tmp_path / f"cut-{steps}"
        parent = start_parent(cut, text, steps, 2)
        wait_for_states(cut, parent)
        parent.send_signal(signal.SIGINT)
        said = parent.communicate(timeout=300)[1]
        stopped = "KeyboardInterrupt" in said
        if stopped and not all((cut / name / "result.json").exists() for name in ("s0", "s1")):
            return cut, steps
        assert stopped or parent.returncode == 0, said
    raise AssertionError("no training was long enough to be stopped")


def test_a_failing_job_stops_the_others_soon(text, tmp_path):
    both = jobs(tmp_path, text, 10**6)
    checkpoint.begin(both[1].out, both[1].prepare().config())
    (tmp_path / "s1" / "state.safetensors").write_bytes(b"no state")
    start = time.monotonic()
    with pytest.raises(UserError, match=r"s1 \(arm cosine, seed 1\) failed: .*not a whole safetensors"):
        train_many(both, 2)
    assert time.monotonic() - start < 120
    assert free(tmp_path / "s0")


def test_a_process_that_dies_is_named(text, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no memory left >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    with pytest.raises(RuntimeError, match=r"seed 0\) failed: its process ended \(exit code 3\)\nno memory left"):
        train_many(jobs(tmp_path, text)[:1])


def test_a_process_that_hangs_is_named_and_killed(text, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    monkeypatch.setattr(crew, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=r"seed 0\) failed: its process hangs: no step in 1 s"):
        train_many(jobs(tmp_path, text)[:1])


def test_bad_jobs_stop_before_work(text, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "Worker", pytest.fail)
    one, two = jobs(tmp_path, text)
    for words, bad in {
        "two jobs write": [one, replace(two, out=one.out)],
        "1 widths": [one, replace(two, widths=(3,))],
        "seed is -3": [replace(one, seed=-3)],
        "does not exist": [replace(one, corpus=tmp_path / "nothing")],
        "training setting": [replace(one, changes={"speed": 3})],
    }.items():
        with pytest.raises(UserError, match=words):
            train_many(bad, 2)
    with pytest.raises(UserError, match="processes is 0"):
        train_many([one], 0)
    assert not one.out.exists()
