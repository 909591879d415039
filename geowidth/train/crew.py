"""The worker processes of one `train_many` on this machine, and what they are at."""

import contextlib
import queue
import time
from typing import Any

from geowidth.errors import UserError
from geowidth.progress import duration
from geowidth.train import state
from geowidth.train.preparation import Training
from geowidth.train.processes import STALL_SECONDS, STALL_TICKS, Worker
from geowidth.train.trainer import describe


def failed(run: Training, message: str) -> str:
    """That a training failed, and how."""
    return f"training {run.folder} (arm {run.arm}, seed {run.seed}) failed: {message}"


def steps_done(trainings: list[Training], results: dict[int, Any]) -> dict[int, int]:
    """Steps of every training so far, as its result or its last state says."""
    done = {i: state.saved_step(one.folder) for i, one in enumerate(trainings)}
    return done | {i: one.settings.steps for i, one in enumerate(trainings) if results[i] is not None}


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
        self.steps = steps_done(self.trainings, results)
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
        return failed(self.trainings[worker.job], message)

    def blame(self, worker):
        """Raise for a worker that ended without a word while it had a job."""
        if worker.job is not None:
            raise RuntimeError(self.words(worker, worker.fate()))

    def stop(self):
        """Ask all workers to stop and wait for them; a second Ctrl-C or STOP_SECONDS kills them."""
        for worker in self.workers:
            worker.close()
        try:
            for worker in self.workers:
                worker.wait()
        finally:
            for worker in self.workers:
                worker.end()
