"""Slurm by submitit: every cell is a job of its own, and one that Slurm stops for its time limit is queued again."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from geowidth.errors import UserError, shown

JOBS_FOLDER = ".jobs"  # submitit's logs and pickles, in a folder that all workers share
WATCH_SECONDS = 0.5
MOST_REQUEUES = 1000  # each goes on from the last state
# {our word: (submitit's name, least whole number)}
COUNTS = {
    "time": ("timeout_min", 1),
    "cpus": ("cpus_per_task", 1),
    "gpus": ("gpus_per_node", 0),
    "memory": ("mem_gb", 1),
}
DEFAULTS = {"timeout_min": 240, "cpus_per_task": 1, "name": "geowidth"}
WORDS = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "gres", "comment")  # as sbatch has them


@contextlib.contextmanager
def on_slurm(rest: str, folder: Path) -> Iterator[Executor]:
    """The executor of the Slurm cluster that this machine submits to. rest: "NAME=VALUE,..." of COUNTS and WORDS."""
    submitit, settings = _submitit(), slurm_settings(rest)
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("on is slurm, but there is no sbatch or srun here; submit from a login node of the cluster")
    with _closing(SubmititPool(lambda: _executor(submitit, folder, "slurm", settings))) as pool:
        yield pool


@contextlib.contextmanager
def on_this_machine(rest: str, folder: Path) -> Iterator[Executor]:
    """submitit's own processes on this machine: what `slurm` does, without a Slurm."""
    submitit = _submitit()
    if rest:
        raise UserError(f"on is 'submitit-local:{rest}'; submitit-local takes no options")
    with _closing(SubmititPool(lambda: _executor(submitit, folder, "local", DEFAULTS))) as pool:
        yield pool


@contextlib.contextmanager
def _closing(pool):
    """The pool; at the end nobody is waited for, as the sweep has done that."""
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def slurm_settings(rest: str) -> dict[str, Any]:
    """submitit's parameters of "NAME=VALUE,..."; a UserError names what is not one."""
    settings: dict[str, Any] = dict(DEFAULTS)
    for word in filter(None, rest.split(",")):
        name, _, value = word.partition("=")
        if name in COUNTS:
            parameter, least = COUNTS[name]
            if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
                raise UserError(f"slurm option {name} is {shown(value)}; allowed: whole numbers from {least} up")
            settings[parameter] = int(value)
        elif name in WORDS and value:
            settings[f"slurm_{name}"] = value
        else:
            raise UserError(f"slurm option is {shown(word)}; allowed: NAME=VALUE of {', '.join([*COUNTS, *WORDS])}")
    return settings


def _submitit():
    try:
        import submitit
    except ImportError as error:
        raise UserError(f"on slurm needs submitit ({error}); pip install 'geowidth[cluster]'") from error
    return submitit


def _executor(submitit, folder, cluster, settings):
    most = {f"{cluster}_max_num_timeout": MOST_REQUEUES}
    executor = submitit.AutoExecutor(folder / JOBS_FOLDER, cluster=cluster, **most)
    executor.update_parameters(**settings)
    return executor


class Requeued:
    """A call that submitit sends again when Slurm stops its job for time or for another job's sake."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments

    def __call__(self) -> Any:
        return self.function(*self.arguments)

    def checkpoint(self) -> Any:
        """What submitit queues in place of the stopped call: the same one."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SubmititPool(Executor):
    """An executor of submitit as one of `concurrent.futures`.

    make: a function that gives it, called at the first `submit`, as it writes its folder. One thread asks how the jobs
    are. A future that is cancelled before its job runs takes the job out of the queue.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.executor: Any = None
        self.jobs: list[tuple[Future[Any], Any]] = []
        self.lock, self.done = threading.Lock(), threading.Event()
        self.watcher: threading.Thread | None = None

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """The Future of `function(*arguments)`; named arguments are refused."""
        if named:
            raise TypeError("SubmititPool.submit takes positional arguments only")
        if self.executor is None:
            self.executor = self.make()
        future: Future[Any] = Future()
        job = self.executor.submit(Requeued(function, arguments))
        with self.lock:
            self.jobs.append((future, job))
        if self.watcher is None:
            self.watcher = threading.Thread(target=self._watch, daemon=True)
            self.watcher.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the jobs; see concurrent.futures.Executor. What was cancelled is out of the queue then."""
        for future, _ in self._open() if cancel_futures else ():
            future.cancel()
        while wait and self._open():
            self.done.wait(WATCH_SECONDS)
        self.done.set()
        if self.watcher is not None:
            self.watcher.join()
        for future, job in self._open():
            if future.cancelled():
                _settle(future, job)

    def _open(self):
        with self.lock:
            return list(self.jobs)

    def _watch(self):
        while not self.done.wait(WATCH_SECONDS):
            over = [pair for pair in self._open() if _settle(*pair)]
            with self.lock:
                self.jobs = [pair for pair in self.jobs if pair not in over]


def _settle(future, job):
    """Tell `future` what became of `job`; whether that was the last word."""
    done = job.done()
    begun = not future.running() and (future.cancelled() or done or job.state == "RUNNING")
    if begun and not future.set_running_or_notify_cancel():
        job.cancel(check=False)
        return True
    if not done:
        return False
    try:
        future.set_result(job.result())
    except Exception as error:  # whatever the job raised, or that it ended without a word
        future.set_exception(error)
    return True
