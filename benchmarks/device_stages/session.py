"""What every stage of a device run needs: the device, the clock, the rows, and the lines of the last table."""

import math
import os
import time
import traceback

import torch

from benchmarks.schema import Row, device_name, read_rows, write_rows
from geowidth import records
from geowidth.ops.backend import OPERATIONS


class Session:
    """One run: `left()` seconds remain; `note` prints a line now and in the last table; `judge` and `add` collect.

    Everything collected is written again and again, so that a killed process loses next to nothing, and the next one
    goes on from there (`resume`).
    """

    def __init__(self, seconds, rehearse, csv=None, json=None):
        self.end = time.monotonic() + seconds
        self.rehearse, self.csv, self.json = rehearse, csv, json
        self.device = "cpu" if rehearse else "cuda"
        self.name = f"{device_name()}, rehearsal" if rehearse else torch.cuda.get_device_name()
        self.rows, self.table, self.wrong, self.errors = [], [], [], []
        self.facts = {"seconds": {}}
        self.ceilings = {}  # "copy" bytes a second; "float64", "float32", "bfloat16", "float16" FLOP a second
        self.running = None

    def resume(self):
        """Go on from what an earlier process wrote."""
        found = records.read_json(self.json)
        self.table, self.wrong, self.errors = found["table"], found["wrong"], found["errors"]
        self.facts, self.ceilings = found["facts"], found["ceilings"]
        self.rows = read_rows(self.csv) if self.csv.exists() else []

    def left(self):
        """Seconds until the session must end."""
        return self.end - time.monotonic()

    def pick(self, real, toy):
        """`real` on a GPU, `toy` in a rehearsal."""
        return toy if self.rehearse else real

    def serving(self, operation, names=("cuda", "triton", "torch")):
        """Those of the named backends that can run an op here; that the CUDA one cannot is an error, once."""
        found = []
        for backend in OPERATIONS[operation].backends:
            if backend.name in names and self.device in backend.devices:
                reason = backend.why_not(device_type="cuda", dtype=torch.float32)
                if reason is None:
                    found.append(backend.name)
                elif backend.name == "cuda" and not any(e.startswith(f"{operation}: ") for e in self.errors):
                    self.failed(operation, RuntimeError(reason))
        return list(dict.fromkeys(found))

    def note(self, line):
        print(line, flush=True)
        self.table.append(line)
        self.save()

    def add(self, op, provider, mode, metric, x_name, x_value, **values):
        """One row; `p50` alone for a single number, or all quantiles."""
        self.rows.append(Row(op, provider, mode, metric, x_name, float(x_value), device=self.name, **values))

    def judge(self, op, provider, mode, n, error, tolerance):
        """Keep one error with its limit; beyond it, or not a number, the result counts as wrong."""
        good = error <= tolerance
        note = "" if good else f"WRONG: at most {tolerance:.2g} is right"
        self.add(op, provider, mode, "relative error", "n", n, error=error, p50=error, note=note)
        if not good:
            self.wrong.append(f"{op}, {provider}, {mode}, n={n}: error {error:.3g}, allowed {tolerance:.2g}")
            print(f"  wrong: {self.wrong[-1]}", flush=True)

    def run(self, name, stage, least):
        """Run one stage unless fewer than `least` seconds are left; what it raises is kept, and so are its rows.

        Returns whether the device still answers: after some errors no call of this process ever will.
        """
        if self.left() < least and not self.rehearse:
            self.note(f"{name}: skipped, {self.left():.0f} s are left and it needs {least}")
            return True
        begin, self.running = time.monotonic(), name
        self.save()
        print(f"--- {name}", flush=True)
        try:
            stage(self)
        except Exception as failure:  # one stage must not cost the others
            traceback.print_exc()
            self.failed(name, failure)
        self.facts["seconds"][name] = round(time.monotonic() - begin, 2)
        self.running = None
        self.save()
        return self._answers()

    def _answers(self):
        if self.device == "cuda":
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except Exception as failure:
                self.failed("the device stopped answering", failure)
                return False
        return True

    def failed(self, where, failure):
        """Keep what went wrong, in one line."""
        words = " ".join(str(failure).split())[:300]
        self.errors.append(f"{where}: {type(failure).__name__}: {words}")
        self.note(f"  failed: {self.errors[-1]}")

    def save(self):
        """Write all there is so far."""
        if self.csv:
            aside = self.csv.with_name(f".{self.csv.name}.new")
            write_rows(aside, self.rows)
            os.replace(aside, self.csv)
        if self.json:
            kept = ("facts", "ceilings", "wrong", "errors", "table", "rehearse", "running")
            records.write_json(self.json, {name: getattr(self, name) for name in kept})


def race(session, candidates, seconds=6.0, most=15):
    """{name: sorted seconds of each call}: candidates take turns in every round, timed by CUDA events on a GPU.

    Each is called once before. One that raises is left out, with a line. Rounds: as many as fit `seconds`, 3 to `most`
    (a rehearsal: 1), and 1 where one round alone takes longer.
    """
    alive, cost = {}, 0.0
    for name, function in candidates.items():
        try:
            function()
            wait(session)
            begin = time.perf_counter()
            function()
            wait(session)
            cost += time.perf_counter() - begin
            alive[name] = function
        except Exception as failure:  # a library that cannot do this size
            session.failed(f"timing {name}", failure)
    fit = math.floor(min(seconds, session.left() / 4) / max(cost, 1e-6))
    rounds = 1 if session.rehearse else max(1 if cost > seconds else 3, min(most, fit))
    times = {name: [] for name in alive}
    for _ in range(rounds):
        for name, function in alive.items():
            times[name].append(seconds_of(session, function))
    return {name: sorted(values) for name, values in times.items()}


def seconds_of(session, function):
    """Seconds of one call: by events on a GPU, where the queue is empty at the start."""
    if session.device == "cpu":
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait(session)
    begin.record()
    function()
    end.record()
    wait(session)
    return begin.elapsed_time(end) / 1e3


def wait(session):
    if session.device == "cuda":
        torch.cuda.synchronize()


def quantiles(values):
    """p20, p50 and p80 as a Row takes them."""
    pick = lambda share: values[min(len(values) - 1, int(share * len(values)))]  # noqa: E731
    return {"p20": pick(0.2), "p50": pick(0.5), "p80": pick(0.8)}


def median(values):
    return values[len(values) // 2]


def poison(session, mebibytes=256):
    """Leave NaN in the memory that the next allocations get, so that an output left unwritten shows."""
    if session.device == "cuda":
        blocks = [torch.full((mebibytes << 18,), math.nan, device="cuda")]
        blocks += [torch.full((1 << k,), math.nan, device="cuda") for k in range(6, 18) for _ in range(4)]
        wait(session)
        del blocks
