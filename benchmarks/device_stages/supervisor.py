"""Keeps a device run alive: the stages run in a process of their own, which is replaced when it dies or hangs.

After an illegal access no later call of a process reaches the GPU, and a kernel whose blocks wait for ever holds its
process for ever; neither may cost the stages that come after.
"""

import subprocess
import time
from pathlib import Path

from benchmarks.device_stages import UNUSABLE
from geowidth import records

ROOT = Path(__file__).resolve().parents[2]
POLL = 0.5
GRACE = 10  # seconds past the end that a worker may take for what it began


def supervise(stages, command, json, seconds):
    """Run `stages` [(name, seconds needed at least, at most)] by worker processes until all are done or time is up.

    command(names, seconds, resume) gives the words that start a worker; it writes its state to `json`. Returns the
    last state: a dict with at least "table", "wrong" and "errors". Leaves the program where a worker finds no GPU.
    """
    end = time.monotonic() + seconds
    todo, resume = [name for name, *_ in stages], False
    most = {name: limit for name, _, limit in stages}
    json.unlink(missing_ok=True)
    while todo and end - time.monotonic() > 5:
        worker = subprocess.Popen(command(todo, end - time.monotonic(), resume), cwd=ROOT)
        reason = _watch(worker, json, most, end + GRACE)
        found = _state(json)
        if reason is None:
            return found
        stage = found["running"]
        words = f"{stage or 'start'}: {reason}"
        print(f"  failed: {words}", flush=True)
        found["errors"].append(words)
        found["table"].append(f"  failed: {words}")
        records.write_json(json, found)
        # Without a stage of its own the worker did not even start: the next would not either.
        todo = todo[todo.index(stage) + 1 :] if stage in todo else _rest(todo, found)
        resume = True
    return _state(json)


def _watch(worker, json, most, end):
    """None when the worker did all it was asked to, else why it is gone."""
    running, since = None, time.monotonic()
    try:
        while worker.poll() is None:
            time.sleep(POLL)
            now, stage = time.monotonic(), _state(json)["running"]
            if stage != running:
                running, since = stage, now
            limit = most.get(running)
            if limit and now - since > limit:
                return f"stopped after {limit} s"
            if now > end:
                return "stopped, out of time"
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
    if worker.returncode == UNUSABLE:
        raise SystemExit(UNUSABLE)
    return None if worker.returncode == 0 else f"its process ended with {worker.returncode}"


def _rest(todo, found):
    """What is left after a worker that ended between two stages; nothing if it made no step."""
    done = found["facts"].get("seconds", {})
    rest = [name for name in todo if name not in done]
    return rest if len(rest) < len(todo) else []


def _state(json):
    empty = {"table": [], "wrong": [], "errors": [], "facts": {}, "ceilings": {}, "running": None}
    return empty | records.read_json(json) if json.exists() else empty
