"""The cells of one `train_many` on an executor: sent, watched through their folders, gathered, stopped."""

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import geowidth
from geowidth import records
from geowidth.errors import UserError
from geowidth.progress import Progress
from geowidth.registry import VARIABLE
from geowidth.train.cell import CLAIM_FILE, Cell, train_cell
from geowidth.train.checkpoint import METRICS_FILE
from geowidth.train.crew import failed, steps_done
from geowidth.train.preparation import Training
from geowidth.train.processes import STOP_SECONDS
from geowidth.train.trainer import describe

LOOK_SECONDS = 1.0  # between two looks at the metrics of all cells under way
TAIL_BYTES = 4096  # of metrics.jsonl: several lines


class Sweep:
    """What is sent to `executor`, and what has come back.

    jobs: of geowidth.train.parallel.TrainJob. trainings: the same, checked; their config.json is written.
    """

    def __init__(
        self, jobs: Sequence[Any], trainings: list[Training], bar: Progress, save_seconds: float, executor: Executor
    ) -> None:
        self.jobs, self.trainings, self.bar = jobs, trainings, bar
        self.save_seconds, self.executor = save_seconds, executor
        self.claim = uuid.uuid4().hex
        self.steps: dict[int, int] = {}
        self.text = ""
        self.flights: dict[Future[dict[str, Any]], int] = {}

    def work(self, waiting: deque[int], most: int, results: dict[int, Any]) -> None:
        """Send the jobs `waiting`, at most `most` at a time, and fill `results` until all are done."""
        self.steps = steps_done(self.trainings, results)
        self.bar.resume_at(sum(self.steps.values()))
        try:
            while waiting or self.flights:
                while waiting and len(self.flights) < most:
                    self.send(waiting.popleft())
                landed, _ = wait(self.flights, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                for future in sorted(landed, key=self.flights.__getitem__):
                    number = self.flights.pop(future)
                    results[number] = self.result(number, future)
                    last = progress(self.trainings[number].folder)[1]
                    self.count({number: (self.trainings[number].settings.steps, last)})
                self.count({number: progress(self.trainings[number].folder) for number in self.flights.values()})
        finally:
            self.stop()

    def send(self, number: int) -> None:
        """Claim the folder of one job and hand its cell to the executor."""
        job, folder = self.jobs[number], self.trainings[number].folder.absolute()
        records.write_text(folder / CLAIM_FILE, self.claim)
        corpus = Path(job.corpus)
        job = replace(job, out=folder, corpus=corpus.absolute() if corpus.exists() else job.corpus)
        cell = Cell(
            job.to_line(self.save_seconds),
            str(folder),
            self.claim,
            geowidth.__version__,
            os.environ.get(VARIABLE, ""),
        )
        self.flights[self.executor.submit(train_cell, cell)] = number

    def result(self, number: int, future: Future[dict[str, Any]]) -> dict[str, Any]:
        """The result of a cell that came back; raises what went wrong."""
        run = self.trainings[number]
        error = None if future.cancelled() else future.exception()
        if error is not None:  # of the executor: a training's own errors come as events
            words = shortened(f"{type(error).__name__}: {error}")
            raise UserError(failed(run, f"its worker failed ({words}); the same command goes on")) from error
        event: dict[str, Any] = {"event": "cancelled"} if future.cancelled() else future.result()
        if event["event"] == "done":
            (run.folder / CLAIM_FILE).unlink(missing_ok=True)
            return event["result"]
        if event["event"] == "error":
            raise (UserError if event["user"] else RuntimeError)(failed(run, event["message"]))
        where = f" on {event['host']}" if "host" in event else ""
        raise UserError(failed(run, f"it was stopped{where}: another command took its folder over"))

    def count(self, news: dict[int, tuple[int, dict[str, Any]]]) -> None:
        """Show how far the cells are. news: {number: (steps done, its last line of metrics)}."""
        lines = [line for _, line in news.values() if line]
        if lines:
            loss = sum(line["loss"] for line in lines) / len(lines)
            self.text = describe(loss, sum(line["tokens"] / max(line["seconds"], 1e-9) for line in lines))
            self.text += f" in {len(lines)} cells" if len(lines) > 1 else ""
        new = sum(step - self.steps[number] for number, (step, _) in news.items())
        self.steps |= {number: step for number, (step, _) in news.items()}
        if new:
            self.bar.step(new, self.text)

    def stop(self) -> None:
        """Let go of all folders, so that cells end with their state saved; what has not ended by then is cancelled."""
        if not self.flights:
            return
        for number in self.flights.values():
            with contextlib.suppress(OSError):
                (self.trainings[number].folder / CLAIM_FILE).unlink()
        try:
            wait(self.flights, timeout=STOP_SECONDS)
        finally:
            for future in self.flights:
                future.cancel()


def shortened(text: str) -> str:
    """A text on one line, without its middle where it is long: both ends of an error tell the most."""
    words = " ".join(text.split())
    return words if len(words) <= 400 else f"{words[:100]} ... {words[-300:]}"


def progress(folder: Path) -> tuple[int, dict[str, Any]]:
    """(steps done, the last line of metrics) of a training under way, by the end of its metrics file."""
    try:
        with open(folder / METRICS_FILE, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = file.read().split(b"\n")
        line = records.loads(tail[-2].decode())  # the last one that is whole
        return line["step"], {name: float(line[name]) for name in ("loss", "tokens", "seconds")}
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # none yet, or another file than ours
        return 0, {}
