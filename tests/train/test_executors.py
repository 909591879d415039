"""Cells on executors: the bits of worker processes here, whoever trains them and whoever dies."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dask_sweep
import pytest
from tiny_preset import TINY

from geowidth import cli, files, records
from geowidth.errors import UserError
from geowidth.train import TrainJob, cell, checkpoint, executors, processes, slurm, state, sweep, train, train_many
from geowidth.train.executors import PLACES, Place, opened
from geowidth.train.processes import python_environment

# A Slurm of one node that runs a job at once, in the background.
SLURM = {
    "sbatch": """
cp "$1" "$NOTES/script"
( export SLURM_JOB_ID=$$ SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
  echo RUNNING > "$NOTES/$$"; bash "$1"; echo COMPLETED > "$NOTES/$$" ) > /dev/null 2>&1 &
echo "Submitted batch job $$"
""",
    "srun": """
while [[ "$1" == --* ]]; do [[ "$1" == --unbuffered ]] || shift; shift; done
exec "$@"
""",
    "sacct": """
echo "JobID|State|NodeList"
for note in "$NOTES"/[0-9]*; do [ -e "$note" ] && echo "$(basename "$note")|$(cat "$note")|here"; done
exit 0
""",
    "scancel": "exit 0\n",
}


def nothing(*_):
    """Watch a training without a word."""


def jobs(folder, text, steps, seeds=(0, 1)):
    return [TrainJob(folder / f"s{s}", (30, 18), s, "cosine", TINY, steps, text) for s in seeds]


def alone(job):
    """The result and the weights of a job that is trained here."""
    result = train(
        job.preset, job.widths, job.seed, job.out, steps=job.steps, arm=job.arm, corpus=job.corpus, watch=nothing
    )
    return result["loss"], weights(job)


def weights(job):
    return (Path(job.out) / "model.safetensors").read_bytes()


class Here(Executor):
    """An executor that does everything at once, in this thread; `change` alters a cell on its way."""

    def __init__(self, change=None):
        self.change, self.sent = change or (lambda sent: sent), []

    def submit(self, function, /, sent):
        future = Future()
        future.set_running_or_notify_cancel()
        self.sent.append(sent)
        try:
            future.set_result(function(self.change(sent)))
        except Exception as error:
            future.set_exception(error)
        return future


def test_a_pool_of_threads_gives_the_bits_of_one_process(text, tmp_path, capfd):
    swept = jobs(tmp_path / "swept", text, 12)
    with ThreadPoolExecutor(2) as pool:
        results = train_many(swept, on=pool)
        assert pool.submit(int).result() == 0  # it is the caller's to shut down
    assert capfd.readouterr().err.splitlines()[-1].startswith("train: 24/24 steps")
    for job, twin, result in zip(swept, jobs(tmp_path / "alone", text, 12), results, strict=True):
        assert (result["loss"], weights(job)) == alone(twin)
        assert not (Path(job.out) / cell.CLAIM_FILE).exists()


def test_a_pool_of_processes_does_too(text, tmp_path):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        swept = jobs(tmp_path / "swept", text, 12, seeds=(0,))
        train_many(swept, on=pool)
    assert weights(swept[0]) == alone(jobs(tmp_path / "alone", text, 12)[0])[1]


def test_submitit_without_a_slurm(tmp_path):
    with opened("submitit-local", tmp_path) as pool:
        good, bad = pool.submit(int, "3"), pool.submit(int, "three")
        assert good.result() == 3 and "invalid literal for int" in str(bad.exception())


def test_slurm_does_too(text, tmp_path, monkeypatch):
    programs, notes = tmp_path / "programs", tmp_path / "notes"
    programs.mkdir()
    notes.mkdir()
    for name, lines in SLURM.items():
        (programs / name).write_text("#!/bin/bash\n" + lines)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(notes))
    swept = jobs(tmp_path / "swept", text, 12, seeds=(0,))
    train_many(swept, on="slurm:partition=gpu,time=30,cpus=2")
    assert weights(swept[0]) == alone(jobs(tmp_path / "alone", text, 12)[0])[1]
    script = (notes / "script").read_text()
    for line in ("--partition=gpu", "--time=30", "--cpus-per-task=2", "--job-name=geowidth"):
        assert f"#SBATCH {line}\n" in script


def test_a_job_that_slurm_stops_is_sent_again():
    assert slurm.Requeued(int, ("3",)).checkpoint().function() == 3


def test_a_cancelled_job_leaves_the_queue():
    class Job:
        state, ended, cancelled = "PENDING", False, False

        def done(self):
            return self.ended

        def cancel(self, check):
            self.cancelled = True

    class Submitit:
        jobs = []

        def submit(self, call):
            self.jobs.append(Job())
            return self.jobs[-1]

    pool = slurm.SubmititPool(Submitit)
    waiting, running = pool.submit(int), pool.submit(int)
    Submitit.jobs[1].state = "RUNNING"
    while not running.running():
        time.sleep(0.01)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and Submitit.jobs[0].cancelled
    assert running.running() and not Submitit.jobs[1].cancelled


def test_a_dask_worker_is_killed_and_the_table_is_the_same(text, tmp_path):
    command = [sys.executable, dask_sweep.__file__, str(tmp_path), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, env=python_environment(), timeout=900)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / dask_sweep.MARK).exists()
    table = records.read_json(tmp_path / "run" / "comparison.json")
    assert [arm["arm"] for arm in table["arms"]] == ["uniform", "cosine"]
    for arm in table["arms"]:
        twin = TrainJob(tmp_path / "twin" / arm["arm"], arm["widths"], 0, arm["arm"], TINY, corpus=text)
        swept = replace(twin, out=tmp_path / "run" / "arms" / arm["arm"] / "seed-0")
        assert (arm["losses"]["0"], weights(swept)) == alone(twin)


def test_what_is_finished_is_not_sent(text, tmp_path):
    job = jobs(tmp_path, text, 12)[0]
    alone(job)
    place = Here()
    assert train_many([job], on=place)[0]["seed"] == 0 and not place.sent


def test_no_more_than_processes_are_sent_at_a_time(text, tmp_path, monkeypatch):
    open_now, most = set(), []

    class Counting(Executor):
        def submit(self, function, /, sent):
            future = Future()
            open_now.add(future)
            most.append(len(open_now))
            if len(open_now) == 2 or len(most) == 3:
                for each in list(open_now):
                    open_now.remove(each)
                    each.set_result({"event": "done", "result": {}})
            return future

    train_many(jobs(tmp_path, text, 12, seeds=(0, 1, 2)), 2, on=Counting())
    assert most == [1, 2, 1]


def test_control_c_lets_cells_save_their_state(text, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    swept = jobs(tmp_path, text, 10**6)
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(sweep.Progress, "step", interrupt)  # once the first steps are seen
        train_many(swept, on=pool, save_seconds=0)
    assert 0 < state.saved_step(swept[0].out) < 10**6
    assert not (swept[1].out / checkpoint.METRICS_FILE).exists()
    with open(swept[0].out / ".lock") as file:
        assert files.lock(file)


def test_a_cell_whose_folder_another_sweep_took_is_named(text, tmp_path):
    def take(sent):
        (Path(sent.folder) / cell.CLAIM_FILE).write_text("another")
        return sent

    with pytest.raises(UserError, match="seed 0.* failed: it was stopped on .*: another command took its folder over"):
        train_many(jobs(tmp_path, text, 12), on=Here(take))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, "has geowidth .*, this command 0.0.1; install one version everywhere"),
        ({"folder": "/nowhere/at/all"}, "does not see /nowhere/at/all; name a folder on a file system"),
        ({"folder": None}, "its worker failed .TypeError"),
    ],
)
def test_what_a_worker_cannot_do_is_said(text, tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(cell, "VISIBLE_SECONDS", 0.1)

    def changed(sent):
        return cell.Cell(**{**vars(sent), **change})

    with pytest.raises(
        (UserError, RuntimeError), match=rf"training .*s0 \(arm cosine, seed 0\) failed: .*{words}|{words}"
    ):
        train_many(jobs(tmp_path, text, 12), on=Here(changed))


def test_a_training_that_is_killed_may_be_sent_again(text, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no memory left >&2\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    words = r"its worker failed \(ChildProcessError: its process ended \(killed by signal 9\) no memory left\)"
    with pytest.raises(UserError, match=rf"seed 0\) failed: {words}; the same command goes on"):
        train_many(jobs(tmp_path, text, 12), 1, on=Here())


def test_a_fault_of_ours_keeps_its_words(text, tmp_path, monkeypatch):
    program = tmp_path / "python"
    event = '{"event": "error", "message": "KeyError: 3", "user": false}'
    program.write_text(f"#!/bin/sh\necho where it was >&2\necho '{event}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    with pytest.raises(RuntimeError, match=r"seed 0\) failed: KeyError: 3\nwhere it was"):
        train_many(jobs(tmp_path, text, 12), 1, on=Here())


def test_progress_is_read_from_the_last_whole_line(tmp_path):
    path = tmp_path / checkpoint.METRICS_FILE
    assert sweep.progress(tmp_path) == (0, {})
    for written in (b"", b'{"step": 1', b"torn\n", b"[]\n", b'{"step": 1}\n'):
        path.write_bytes(written)
        assert sweep.progress(tmp_path) == (0, {})
    line = '{"step": 7, "split": "train", "loss": 2.5, "tokens": 64, "seconds": 0.5}\n'
    path.write_text("x" * 5000 + "\n" + line + '{"step": 8, "spl')
    assert sweep.progress(tmp_path) == (7, {"loss": 2.5, "tokens": 64.0, "seconds": 0.5})


def test_long_errors_keep_both_ends():
    found = sweep.shortened("Begin\n" + "x " * 1000 + "\nend")
    assert found.startswith("Begin x") and found.endswith("x end") and len(found) < 410


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("nono", "on is 'nono'; allowed: local .*dask://HOST:PORT"),
        ("", "on is ''; allowed"),
        (3, "on is 3; allowed"),
        ("local:3", "local takes no options"),
        ("dask", "needed: dask://HOST:PORT"),
        ("dask://host", "needed: dask://HOST:PORT"),
        ("submitit-local:x=1", "takes no options"),
        ("slurm:gpu", "slurm option is 'gpu'; allowed: NAME=VALUE of time, cpus"),
        ("slurm:time=0", "slurm option time is '0'; allowed: whole numbers from 1 up"),
        ("slurm:partition=", "slurm option is 'partition='"),
    ],
)
def test_places_that_are_none_are_refused_before_work(text, tmp_path, on, words):
    with pytest.raises(UserError, match=words) as caught:
        train_many(jobs(tmp_path, text, 12), on=on)
    assert "\n" not in str(caught.value) and not (tmp_path / "s0").exists()


def test_the_device_is_checked(text, tmp_path):
    swept = [replace(job, device="abacus") for job in jobs(tmp_path, text, 12, seeds=(0,))]
    with pytest.raises(UserError, match="device is 'abacus'; allowed: cpu, cuda, cuda:N, auto"):
        train_many(swept)
    assert not (tmp_path / "s0").exists()


def test_a_scheduler_that_is_not_there_is_refused_in_bounded_time(text, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    with pytest.raises(UserError, match="no dask scheduler answers at 127.0.0.1:1 within 0.5 s"):
        train_many(jobs(tmp_path, text, 12), on="dask://127.0.0.1:1")
    assert not (tmp_path / "s0").exists()


@pytest.mark.parametrize(("module", "on"), [("distributed", "dask://localhost:1"), ("submitit", "slurm")])
def test_an_absent_extra_is_named(text, tmp_path, monkeypatch, module, on):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"pip install 'geowidth\[cluster\]'"):
        train_many(jobs(tmp_path, text, 12), on=on)


def test_workers_of_another_version_are_refused_by_name():
    class Client:
        def __init__(self, version):
            self.version = version

        def get_versions(self, packages):
            return {"workers": {"tcp://a:1": {"packages": {packages[0]: self.version}}}}

    for found, words in (("0.0.1", "tcp://a:1 has geowidth 0.0.1"), (None, "tcp://a:1 has no geowidth")):
        with pytest.raises(UserError, match=words):
            executors.check_workers(Client(found))


def test_slurm_settings():
    found = slurm.slurm_settings("partition=gpu,time=120,cpus=4,memory=16,gpus=1,account=lab")
    wanted = {"timeout_min": 120, "cpus_per_task": 4, "mem_gb": 16, "gpus_per_node": 1, "name": "geowidth"}
    assert found == wanted | {"slurm_partition": "gpu", "slurm_account": "lab"}


def test_a_place_from_outside(tmp_path, monkeypatch, text):
    place = Here()
    monkeypatch.setitem(
        PLACES._items, "mine", Place("mine", "mine:WORD", lambda rest, _: contextlib.nullcontext(place))
    )
    with opened("mine:anything", tmp_path) as executor:
        assert executor is place
    assert cli.main(["run", "--on", "mine:anything", "--preset", "nono"]) == 2
