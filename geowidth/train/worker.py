"""The process that `train_many` starts: trains jobs that arrive on standard input and reports on standard output.

Each line in is one job (JSON, the arguments of `train`); each line out is one event (JSON). The end of standard input
means stop: the parent closed it, or died. The job in hand then saves its state after the step it is in.
"""

import os
import queue
import sys
import threading
import traceback
from pkgutil import resolve_name
from typing import Any

GRACE = 15.0  # seconds from the end of standard input until a worker that has not stopped leaves at once


def main():
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints must not come between the events
    jobs: queue.Queue[Any] = queue.Queue()
    stopping = threading.Event()
    threading.Thread(target=listen, args=(jobs, stopping), daemon=True).start()

    from geowidth import records
    from geowidth.errors import UserError

    def say(**event):
        try:
            print(records.dumps(event), file=events, flush=True)
        except OSError:  # the parent is gone
            stopping.set()

    while (line := jobs.get()) is not None:
        try:
            work(records.loads(line), say, stopping)
        except KeyboardInterrupt:
            break
        except UserError as error:
            return fail(say, str(error), user=True)
        except BaseException as error:
            traceback.print_exc()
            return fail(say, f"{type(error).__name__}: {error}", user=False)
    return 0


def listen(jobs, stopping):
    """Queue the lines of standard input; at its end, ask for a stop and see to it."""
    for line in sys.stdin:
        jobs.put(line)
    stopping.set()
    jobs.put(None)
    threading.Event().wait(GRACE)
    os._exit(1)


def work(job, say, stopping):
    """Train one job; one event per step, one at the end."""
    from geowidth.models.presets import Preset
    from geowidth.train.loop import train

    def watch(step, loss, speed):
        say(event="step", step=step, loss=loss, speed=speed)

    look = job.pop("look", None)
    habits = {"watch": watch, "stop": stopping.is_set, "look": None if look is None else resolve_name(look)}
    result = train(Preset.from_json(job.pop("preset")), **habits, **job)
    say(event="done", result=result)


def fail(say, message, user):
    say(event="error", message=message, user=user)
    return 1


if __name__ == "__main__":
    sys.exit(main())
