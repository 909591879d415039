"""Many trainings at once: worker processes of one torch thread each, one progress for all.

With one thread a worker, a result's bits depend neither on the number of cores nor on how many workers run. Workers are
plain processes (geowidth.train.worker) that read jobs from a pipe. When the parent ends, however it ends, the pipe
closes, and every worker saves its state and stops after the step it is in. With `on` the trainings go to an executor
(geowidth.train.executors) instead, on this machine or others, with the same bits.
"""

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.presets import Preset, preset_named
from geowidth.progress import Progress
from geowidth.text.corpus import Corpus, load_corpus
from geowidth.train import checkpoint
from geowidth.train.cell import CLAIM_FILE
from geowidth.train.crew import Crew
from geowidth.train.executors import opened
from geowidth.train.preparation import Training, prepare
from geowidth.train.processes import process_count
from geowidth.train.sweep import Sweep
from geowidth.train.trainer import SAVE_SECONDS
from geowidth.train.world import training_device


@dataclass(frozen=True)
class TrainJob:
    """One training: the arguments of `geowidth.train.train`. changes: training settings other than the preset's.

    device: that of the worker, which may be on another machine. look: the function of that name, as MODULE:FUNCTION,
    so that a text can carry it.
    """

    out: str | Path
    widths: tuple[int, ...] | None = None
    seed: int = 0
    arm: str | None = None
    preset: str | Preset = "nano"
    steps: int | None = None
    corpus: str | Path = "stdlib"
    changes: dict[str, Any] = field(default_factory=dict)
    initial_scales: tuple[float, ...] | None = None
    device: str = "cpu"
    look: str | None = None

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


def train_many(
    jobs: Iterable[TrainJob],
    processes: int | None = None,
    *,
    on: str | Executor | None = None,
    label: str = "train",
    save_seconds: float = SAVE_SECONDS,
) -> list[dict[str, Any]]:
    """Train all `jobs` (TrainJob), `processes` at a time, and return their results in the order of the jobs.

    processes: trainings side by side (default: the cores this process may use; with `on` all that the executor takes).
    on: where they are trained: None for worker processes here, any concurrent.futures.Executor, or a text such as
    dask://HOST:PORT (geowidth.train.executors); the folders must then be ones that its workers see.

    Finished jobs are skipped, begun ones go on from their last state. Raises UserError for bad jobs before any work,
    and the error of a failing worker at once, after stopping the others; Ctrl-C stops them all. In each case every job
    can be resumed.
    """
    jobs = list(jobs)
    most = process_count(processes)
    texts = {source: load_corpus(source) for source in {str(job.corpus) for job in jobs}}
    trainings = [job.prepare(texts[str(job.corpus)]) for job in jobs]
    folders = [one.folder.resolve() for one in trainings]
    twice = next((f for f in folders if folders.count(f) > 1), None)
    if twice is not None:
        raise UserError(f"two jobs write to {twice}; give every job a folder of its own")
    with opened(on, shared_folder(folders)) as executor:
        if executor is None:  # that of workers elsewhere is theirs to check
            for device in {job.device for job in jobs}:
                training_device(device)
        for one in trainings:
            checkpoint.begin(one.folder, one.config())
            (one.folder / CLAIM_FILE).unlink(missing_ok=True)  # whatever still trains there for another sweep stops
        results: dict[int, Any] = {i: checkpoint.read_result(one.folder) for i, one in enumerate(trainings)}
        waiting = deque(i for i, result in results.items() if result is None)
        if waiting:
            with Progress(sum(one.settings.steps for one in trainings), label) as bar:
                if executor is None:
                    Crew(jobs, trainings, bar, save_seconds).work(waiting, min(most, len(waiting)), results)
                else:
                    most = len(waiting) if processes is None else most
                    Sweep(jobs, trainings, bar, save_seconds, executor).work(waiting, most, results)
    return [results[i] for i in range(len(jobs))]


def shared_folder(folders: list[Path]) -> Path:
    """The folder that all training folders lie in."""
    return Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
