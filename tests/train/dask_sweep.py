"""`geowidth run --on dask://...` on a cluster of two processes, one of which is killed while it trains.

Run by test_executors.py in a process of its own, so that what dask says and leaves at its end disturbs no test.
Arguments: a folder, a text file. Exits with the command's code.
"""

import functools
import os
import signal
import sys
from pathlib import Path

MARK = "killed"


def dying(marker, cell):
    """The cell as ever, but the first process to hear of a third step while it trains kills itself (SIGKILL)."""
    from geowidth.train import processes
    from geowidth.train.cell import train_cell

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
        return train_cell(cell)
    finally:
        processes.Worker.read = read


def first(marker):
    """Whether nobody was here before."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main(folder, text):
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    import dask
    from distributed import LocalCluster
    from tiny_preset import TINY  # here, so that dask's processes need not load torch

    from geowidth import cli
    from geowidth.models.presets import PRESETS
    from geowidth.train import executors, sweep

    PRESETS.register(TINY)
    sweep.train_cell = functools.partial(dying, str(folder / MARK))
    executors.CONNECT_SECONDS = 600.0  # a busy machine is no fault
    dask.config.set({"distributed.comm.timeouts.connect": "600s", "distributed.comm.timeouts.tcp": "600s"})
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", scheduler_port=0
    ) as cluster:
        on = "dask://" + cluster.scheduler_address.removeprefix("tcp://")
        words = ["run", "--preset", "tiny", "--corpus", str(text), "--seeds", "0", "--out", str(folder / "run")]
        return cli.main([*words, "--on", on])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
