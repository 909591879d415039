"""Many trainings at once: worker processes of one torch thread each, one progress for all.

With one thread a worker, a result's bits depend neither on the number of cores nor on how many workers run. Workers are
plain processes (geowidth.train.worker) that read jobs from a pipe. When the parent ends, however it ends, the pipe
closes, and every worker saves its state and stops after the step it is in.
"""

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import geowidth
from geowidth import records
from geowidth.errors import UserError, whole
from geowidth.models.presets import Preset, preset_named
from geowidth.progress import Progress, duration
from geowidth.text.corpus import Corpus, load_corpus
from geowidth.train import checkpoint, state
from geowidth.train.loop import SAVE_SECONDS
from geowidth.train.preparation import Training, prepare
from geowidth.train.trainer import describe

STOP_SECONDS = 20.0  # a worker that has not stopped by then is killed
STALL_SECONDS, STALL_TICKS = 1800.0, 30  # a worker that has not said a word for so long hangs: a step takes seconds


@dataclass(frozen=True)
class TrainJob:
    """One training: the arguments of `geowidth.train.train`. changes: training settings other than the preset's."""

    out: str | Path
    widths: tuple[int, ...] | None = None
    seed: int = 0
    arm: str | None = None
    preset: str | Preset = "nano"
    steps: int | None = None
    corpus: str | Path = "stdlib"
    changes: dict[str, Any] = field(default_factory=dict)
    initial_scales: tuple[float, ...] | None = None

    def prepare(self, corpus: Corpus | None = None) -> Training:
        """The checked Training; raises UserError. corpus: the Corpus, if it is loaded already."""
        arguments: dict[str, Any] = {"steps": self.steps, "arm": self.arm, "corpus": corpus or self.corpus}
        arguments["initial_scales"] = self.initial_scales
        return prepare(self.preset, self.widths, self.seed, self.out, **arguments, **self.changes)

    def to_line(self, save_seconds: float) -> str:
        """The job as the worker reads it."""
        value = asdict(self) | {"preset": preset_named(self.preset).to_json(), "save_seconds": save_seconds}
        value |= value.pop("changes")
        value["out"], value["corpus"] = str(self.out), str(self.corpus)
        return records.dumps(value) + "\n"


def default_processes() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_count(processes: int | None = None) -> int:
    """`processes` if it is a whole number from 1 up; None stands for the cores this process may use."""
    return whole("processes", default_processes() if processes is None else processes, 1)


def python_environment() -> dict[str, str]:
    """Environment of a child Python process: this very geowidth, one thread."""
    paths = [str(Path(geowidth.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def train_many(
    jobs: Iterable[TrainJob], processes: int | None = None, *, label: str = "train", save_seconds: float = SAVE_SECONDS
) -> list[dict[str, Any]]:
    """Train all `jobs` (TrainJob), `processes` at a time, and return their results in the order of the jobs.

    processes: worker processes (default: the cores this process may use). Finished jobs are skipped, begun ones go on
    from their last state. Raises UserError for bad jobs before any work, and the error of a failing worker at once,
    after stopping the others; Ctrl-C stops them all. In each case every job can be resumed.
    """
    jobs = list(jobs)
    processes = process_count(processes)
    texts = {source: load_corpus(source) for source in {str(job.corpus) for job in jobs}}
    trainings = [job.prepare(texts[str(job.corpus)]) for job in jobs]
    folders = [one.folder.resolve() for one in trainings]
    twice = next((f for f in folders if folders.count(f) > 1), None)
    if twice is not None:
        raise UserError(f"two jobs write to {twice}; give every job a folder of its own")
    for one in trainings:
        checkpoint.begin(one.folder, one.config())
    results: dict[int, Any] = {i: checkpoint.read_result(one.folder) for i, one in enumerate(trainings)}
    waiting = deque(i for i, result in results.items() if result is None)
    if waiting:
        with Progress(sum(one.settings.steps for one in trainings), label) as bar:
            Crew(jobs, trainings, bar, save_seconds).work(waiting, min(processes, len(waiting)), results)
    return [results[i] for i in range(len(jobs))]


class Crew:
    """The workers of one `train_many` and what they are at."""

    def __init__(self, jobs, trainings, bar, save_seconds):
        self.jobs, self.trainings, self.bar, self.save_seconds = jobs, trainings, bar, save_seconds
        self.events: queue.Queue[Any] = queue.Queue()
        self.ticked = time.monotonic()
        self.workers = []
        self.steps = {}
        self.news = {}

    def work(self, waiting, processes, results):
        """Hand out the jobs `waiting` and fill `results` until all are done."""
        self.steps = {i: state.saved_step(one.folder) for i, one in enumerate(self.trainings)}
        self.steps |= {i: one.settings.steps for i, one in enumerate(self.trainings) if results[i] is not None}
        self.bar.resume_at(sum(self.steps.values()))
        left = len(waiting)
        try:
            for _ in range(processes):
                self.workers.append(Worker(self.events))
                self.hand_out(self.workers[-1], waiting)
            while left:
                worker, event = self.next_event()
                if event is None:
                    self.blame(worker)
                elif event["event"] == "step":
                    self.count(worker, event)
                elif event["event"] == "done":
                    results[worker.job] = event["result"]
                    left -= 1
                    self.hand_out(worker, waiting)
                elif event["user"]:
                    raise UserError(self.words(worker, event["message"]))
                else:
                    raise RuntimeError(self.words(worker, f"{event['message']}\n{worker.last_words()}"))
        finally:
            self.stop()

    def next_event(self):
        """(worker, event) of whoever speaks next; RuntimeError once one with a job has been silent for too long."""
        while True:
            found = None
            with contextlib.suppress(queue.Empty):
                found = self.events.get(timeout=STALL_SECONDS / STALL_TICKS)
                found[0].silent = 0
            self.tick()
            if found:
                return found

    def tick(self):
        """Count silence in ticks, at most one a call: a parent that slept itself (Ctrl-Z) blames no worker for it."""
        now = time.monotonic()
        if now - self.ticked < STALL_SECONDS / STALL_TICKS:
            return
        self.ticked = now
        for worker in self.workers:
            worker.silent += worker.job is not None
            if worker.silent > STALL_TICKS:
                raise RuntimeError(self.words(worker, f"its process hangs: no step in {duration(STALL_SECONDS)}"))

    def hand_out(self, worker, waiting):
        self.news.pop(worker, None)
        worker.job = waiting.popleft() if waiting else None
        if worker.job is not None:
            worker.send(self.jobs[worker.job].to_line(self.save_seconds))
        else:
            worker.close()

    def count(self, worker, event):
        self.news[worker] = event["loss"], event["speed"]
        loss = sum(value for value, _ in self.news.values()) / len(self.news)
        speed = sum(value for _, value in self.news.values())
        text = describe(loss, speed) + (f" in {len(self.news)} processes" if len(self.news) > 1 else "")
        new = event["step"] - self.steps[worker.job]
        self.steps[worker.job] = event["step"]
        self.bar.step(new, text)

    def words(self, worker, message):
        run = self.trainings[worker.job]
        return f"training {run.folder} (arm {run.arm}, seed {run.seed}) failed: {message}"

    def blame(self, worker):
        """Raise for a worker that ended without a word while it had a job."""
        if worker.job is None:
            return
        code = worker.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise RuntimeError(self.words(worker, f"its process ended ({how})\n{worker.last_words()}"))

    def stop(self):
        """Ask all workers to stop and wait for them; a second Ctrl-C or STOP_SECONDS kills them."""
        for worker in self.workers:
            worker.close()
        try:
            for worker in self.workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(STOP_SECONDS)
        finally:
            for worker in self.workers:
                worker.end()


class Worker:
    """One worker process. Its events are put on `events` as (worker, event); (worker, None) when it ends."""

    def __init__(self, events):
        self.job, self.silent = None, 0
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geowidth.train.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
            env=python_environment(),
            start_new_session=True,  # Ctrl-C reaches the parent alone; it stops the workers
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None  # both are pipes
        self.input, self.output = stdin, stdout
        self.reader = threading.Thread(target=self.read, args=(events,), daemon=True)
        self.reader.start()

    def read(self, events):
        for line in self.output:
            events.put((self, records.loads(line)))
        events.put((self, None))

    def send(self, line):
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed by the end of its output
            self.input.write(line)
            self.input.flush()

    def close(self):
        """End its standard input: it stops after the step it is in."""
        with contextlib.suppress(BrokenPipeError):
            self.input.close()

    def last_words(self):
        """What it left on standard error; to be asked only of one that writes no more."""
        self.errors.seek(0)
        return self.errors.read().strip()

    def end(self):
        """Kill the process if it still runs, and let go of its pipes."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.output.close()
        self.errors.close()
