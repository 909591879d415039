"""A sweep on a dask cluster of two processes, one of which is killed; and `geowidth run --on dask://...` on it.

Run by test_executors.py in a process of its own, so that what dask says and leaves at its end disturbs no test.
Arguments: a folder, a text file. Prints one JSON object.
"""

import os
import signal
import sys
from concurrent.futures import Executor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tiny_preset import TINY

MARK = "killed"


def dying(function, cell, marker):
    """`function(cell)`, but the first process to hear of a third step while it trains kills itself (SIGKILL)."""
    from geowidth.train import processes

    read, steps = processes.Worker.read, []

    class Events:
        def __init__(self, events):
            self.events = events

        def put(self, found):
            self.events.put(found)
            steps.append(found)
            if len(steps) == 3 and first(marker):
                os.kill(os.getpid(), signal.SIGKILL)

    processes.Worker.read = lambda worker, events: read(worker, Events(events))
    try:
        return function(cell)
    finally:
        processes.Worker.read = read


def first(marker):
    """Whether nobody was here before."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Deadly(Executor):
    """An executor one of whose workers dies."""

    def __init__(self, executor, marker):
        self.executor, self.marker = executor, str(marker)

    def submit(self, function, /, cell):
        return self.executor.submit(dying, function, cell, self.marker)


def jobs(folder, text, steps, seeds=(0, 1)):
    from geowidth.train import TrainJob

    return [TrainJob(folder / f"s{s}", (30, 18), s, "cosine", TINY, steps, text) for s in seeds]


def main(folder, text):
    import dask
    from distributed import LocalCluster

    from geowidth import cli, records
    from geowidth.models.presets import PRESETS
    from geowidth.train import executors, train_many

    PRESETS.register(TINY)
    executors.CONNECT_SECONDS = 600.0  # a busy machine is no fault
    dask.config.set({"distributed.comm.timeouts.connect": "600s", "distributed.comm.timeouts.tcp": "600s"})
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", scheduler_port=0
    ) as cluster:
        on = "dask://" + cluster.scheduler_address.removeprefix("tcp://")
        with executors.opened(on, folder) as executor:
            results = train_many(jobs(folder / "swept", text, 40), on=Deadly(executor, folder / MARK))
        words = ["run", "--preset", "tiny", "--corpus", str(text), "--seeds", "0", "--out", str(folder / "run")]
        code = cli.main([*words, "--on", on])
    answer = {"losses": [result["loss"] for result in results], "killed": (folder / MARK).exists(), "code": code}
    records.write_json(folder / "answer.json", answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
