"""One training of a sweep as an executor's worker does it, on this machine or another.

A cell is plain text, so any executor can carry it. The worker starts a process of its own for it (the one that
`train_many` uses here: geowidth.train.worker), so its bits do not hang on what else the executor's process has done to
torch, and when the executor's process is killed, the training saves its state and stops. A cell can be sent again at
any time: it goes on from the folder's last state, and a finished one is only read.

The file `.claim` in a training folder names the sweep that the folder belongs to. A cell of another sweep, or of one
that was stopped, ends after the step it is in with its state saved.
"""

import queue
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geowidth
from geowidth.registry import VARIABLE
from geowidth.train import processes

CLAIM_FILE = ".claim"
CONFIG_FILE = "config.json"  # written by the sweep before it sends a cell
TICK_SECONDS = 1.0  # between two looks at the claim
VISIBLE_SECONDS = 30.0  # file systems over a network may show a new file as late as this


@dataclass(frozen=True)
class Cell:
    """What a worker needs to know of one training.

    line: the job as geowidth.train.worker reads it. folder: its absolute path. claim: the sweep it belongs to.
    version: of the geowidth that sent it. extensions: modules to load (geowidth.registry).
    """

    line: str
    folder: str
    claim: str
    version: str
    extensions: str = ""

    def refusal(self) -> str:
        """Why this machine cannot train the cell, in one line; "" if it can."""
        host = socket.gethostname()
        if geowidth.__version__ != self.version:
            return (
                f"the worker on {host} has geowidth {geowidth.__version__}, this command {self.version}; "
                "install one version everywhere"
            )
        until = time.monotonic() + VISIBLE_SECONDS
        while not (Path(self.folder) / CONFIG_FILE).is_file():
            if time.monotonic() >= until:
                return (
                    f"the worker on {host} does not see {self.folder}; "
                    "name a folder on a file system that all workers share"
                )
            time.sleep(min(TICK_SECONDS, VISIBLE_SECONDS / 10))
        return ""

    def claimed(self) -> bool:
        """Whether the folder still belongs to the sweep that sent the cell."""
        try:
            return (Path(self.folder) / CLAIM_FILE).read_text() == self.claim
        except FileNotFoundError:
            return False
        except OSError:  # a file system that stumbles says nothing about the claim
            return True


def train_cell(cell: Cell) -> dict[str, Any]:
    """Train `cell` and return its last event: {"event": "done", "result"}, {"event": "stopped", "host"}, or
    {"event": "error", "message", "user"} where `user` says whether the user can mend it.

    Raises ChildProcessError when the training's process was killed: sent again, the cell goes on from its last state.
    """
    refusal = cell.refusal()
    if refusal:
        return {"event": "error", "message": refusal, "user": True}
    if not cell.claimed():
        return _stopped()
    events: queue.Queue[Any] = queue.Queue()
    worker = processes.Worker(events, {VARIABLE: cell.extensions})
    try:
        worker.send(cell.line)
        return _last_event(cell, worker, events)
    finally:
        worker.close()
        worker.wait()
        worker.end()


def _last_event(cell, worker, events):
    looked, silent, stopping = time.monotonic(), 0.0, False
    while True:
        event: Any = {"event": "step"}
        try:
            event, silent = events.get(timeout=TICK_SECONDS)[1], 0.0
        except queue.Empty:
            silent += TICK_SECONDS
        if event is None and not stopping:  # no fault of the training's own: an executor may try again
            raise ChildProcessError(worker.fate())
        if event is None:
            return _stopped()
        if event["event"] == "error":
            return event if event["user"] else _error(f"{event['message']}\n{_words(worker)}")
        if event["event"] != "step":
            return event
        if silent > processes.STALL_SECONDS:
            return _error("its process hangs")
        if not stopping and time.monotonic() - looked >= TICK_SECONDS:
            looked, stopping = time.monotonic(), not cell.claimed()
            if stopping:
                worker.close()


def _words(worker):
    """The last words of a worker that is about to end."""
    worker.close()
    worker.wait()
    return worker.last_words()


def _stopped():
    return {"event": "stopped", "host": socket.gethostname()}


def _error(message):
    return {"event": "error", "message": message, "user": False}
