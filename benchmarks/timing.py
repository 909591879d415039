"""Times that can be compared on a busy machine: the candidates take turns within every round, and medians are kept.

Each call is timed by the wall clock and by this process's CPU clock. The CPU clock does not count what other processes
took, but it sums over threads: compare it only between runs with equal thread counts.
"""

import gc
import time
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Samples:
    """Seconds of every timed call of one candidate, and what its last call returned."""

    wall: list = field(default_factory=list)
    cpu: list = field(default_factory=list)
    result: object = None

    def quantiles(self, metric="wall"):
        """{"p20": ..., "p50": ..., "p80": ...} of "wall" or "cpu" seconds: keyword arguments of a schema.Row."""
        values = np.quantile(getattr(self, metric), [0.2, 0.5, 0.8])
        return dict(zip(("p20", "p50", "p80"), map(float, values), strict=True))


def interleave(candidates, rounds=5, warmup=1, seconds=None, least=0.0, keep=False):
    """Time `candidates` ({name: function without arguments}) in interleaved rounds; returns {name: Samples}.

    rounds    timed calls of each candidate
    warmup    untimed calls before
    seconds   a candidate whose timed calls have taken this long sits out the remaining rounds (None: never)
    least     a call shorter than this many seconds is repeated within its turn and the mean taken
    keep      hold on to the last result of each candidate (it costs memory that the next one may miss)
    """
    samples = {name: Samples() for name in candidates}
    for name, function in candidates.items():
        for _ in range(warmup):
            samples[name].result = function()
        if not keep:
            samples[name].result = None
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, function in candidates.items():
                if seconds is not None and sum(samples[name].wall) > seconds:
                    continue
                result = _turn(function, least, samples[name])
                samples[name].result = result if keep else None
                del result
    finally:
        if enabled:
            gc.enable()
    return samples


def _turn(function, least, samples):
    calls = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        result = function()
        calls += 1
        spent = time.perf_counter() - wall
        if spent >= least:
            break
    samples.cpu.append((time.process_time() - cpu) / calls)
    samples.wall.append(spent / calls)
    return result


def ratio(samples, name, base, metric="wall"):
    """Quantiles of `name`'s seconds over `base`'s, round by round: noise that both met cancels."""
    over = [a / b for a, b in zip(getattr(samples[name], metric), getattr(samples[base], metric), strict=False)]
    values = np.quantile(over, [0.2, 0.5, 0.8])
    return dict(zip(("p20", "p50", "p80"), map(float, values), strict=True))
