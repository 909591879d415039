"""One worker process (geowidth.train.worker) as its parent holds it, and how many of them a machine may have.

Nothing here loads torch: whoever hands a training to a worker process need not pay for it.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import geowidth
from geowidth import records
from geowidth.errors import whole
from geowidth.ranks import without_ranks

STOP_SECONDS = 20.0  # a worker that has not stopped by then is killed
STALL_SECONDS, STALL_TICKS = 1800.0, 30  # a worker that has not said a word for so long hangs: a step takes seconds


def default_processes() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_count(processes: int | None = None) -> int:
    """`processes` if it is a whole number from 1 up; None stands for the cores this process may use."""
    return whole("processes", default_processes() if processes is None else processes, 1)


def python_environment() -> dict[str, str]:
    """Environment of a child Python process: this very geowidth, one thread, none of torchrun's processes."""
    paths = [str(Path(geowidth.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return without_ranks(dict(os.environ)) | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


class Worker:
    """One worker process. Its events are put on `events` as (worker, event); (worker, None) when it ends.

    variables: what its environment has beside `python_environment`.
    """

    def __init__(self, events: Any, variables: Mapping[str, str] | None = None) -> None:
        self.job: int | None = None
        self.silent = 0
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geowidth.train.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
            env={**python_environment(), **(variables or {})},
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

    def send(self, line: str) -> None:
        """Give it a job."""
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed by the end of its output
            self.input.write(line)
            self.input.flush()

    def close(self) -> None:
        """End its standard input: it stops after the step it is in."""
        with contextlib.suppress(BrokenPipeError):
            self.input.close()

    def fate(self) -> str:
        """How a process that ended without a word did so, and what it left on standard error."""
        code = self.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended ({how})\n{self.last_words()}"

    def last_words(self) -> str:
        """What it left on standard error; to be asked only of one that writes no more."""
        self.errors.seek(0)
        return self.errors.read().strip()

    def wait(self) -> None:
        """Give it STOP_SECONDS to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Kill the process if it still runs, and let go of its pipes."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.output.close()
        self.errors.close()
