"""A short timed probe in a process of its own, so that its peak memory is that of the work alone.

``python -m geowidth.plan.probe`` reads one request (JSON) from standard input and answers with one line of JSON.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geowidth import records

if TYPE_CHECKING:
    from geowidth.models.config import ModelConfig
    from geowidth.models.training import TrainingSettings

TRAIN_SECONDS = 1.5


def run_probe(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a probe process to `request`; raises RuntimeError with its last words if it failed."""
    from geowidth.train.processes import python_environment

    command = [sys.executable, "-m", "geowidth.plan.probe"]
    text = records.dumps(request)
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", env=python_environment())
    if done.returncode:
        raise RuntimeError(f"the timing probe failed: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    return records.loads(done.stdout)


def probe_training(model: ModelConfig, training: TrainingSettings, seconds: float = TRAIN_SECONDS) -> dict[str, float]:
    """Time optimiser steps and evaluation windows of a model on random tokens.

    model, training: ModelConfig and TrainingSettings. Returns {"step", "window"}: seconds, the least of several.
    """
    import torch

    from geowidth.models.transformer import TaperedTransformer
    from geowidth.train.losses import accumulate_gradients, mean_loss
    from geowidth.train.optimise import make_optimizers
    from geowidth.train.supervision import Supervision, is_supervised

    torch.set_num_threads(training.threads)
    generator = torch.Generator().manual_seed(0)
    network = TaperedTransformer(model, 0)
    network.compute_in(None if training.dtype == "float32" else getattr(torch, training.dtype))
    network.recompute_in_backward(training.recompute)
    optimizer = make_optimizers(network, training)
    shape = (training.batch, model.context + 1)
    batch = torch.randint(model.vocabulary, shape, generator=generator)

    supervision = Supervision(model, training, 0) if is_supervised(training) else None
    later = range(training.steps // 2, training.steps)  # curricula change steps: those of the second half are timed
    numbers = itertools.count()

    def step():
        optimizer.zero_grad()
        done = None if supervision is None else supervision.at(later[next(numbers) % len(later)], range(training.batch))
        accumulate_gradients(network, batch[:, :-1], batch[:, 1:], training.microbatch, step=done)
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip)
        optimizer.step()

    windows = batch[: training.microbatch]
    return {
        "step": _typical(step, seconds),
        "window": _typical(lambda: mean_loss(network, windows, training.microbatch), seconds / 3) / len(windows),
    }


def probe_measurement(model: ModelConfig, sizes: Sequence[int]) -> dict[str, Any]:
    """Time one layer's nine signals and dimension on synthetic clouds of each size, one thread, and a forward pass.

    model: ModelConfig. Returns {"seconds": [one a size], "window": seconds of one context's forward pass}. The clouds
    lie near a linear space of eight dimensions, as states of trained models nearly do; persistence of clouds that fill
    all dimensions would take a hundred times as long.
    """
    import torch

    from geowidth.artifacts.clouds import Clouds
    from geowidth.measure.pipeline import MeasureSettings, measure_layer
    from geowidth.models.transformer import TaperedTransformer

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    times = []
    for size in (sizes[0], *sizes):  # the first one warms up
        before = draw(1, size, 8) @ draw(8, model.dimension)
        after = before + 0.3 * draw(1, size, model.dimension)
        place = torch.arange(size)
        clouds = Clouds(before, after, place, place, (1,), 3, {})
        start = time.perf_counter()
        measure_layer(clouds, 0, MeasureSettings(), threads=1)
        times.append(time.perf_counter() - start)
    network, window = TaperedTransformer(model, 0), torch.zeros(1, model.context, dtype=torch.int64)
    with torch.no_grad():
        forward = _typical(lambda: network(window), 0.3)
    return {"seconds": times[1:], "window": forward}


def _typical(action, seconds):
    """The median time of an action repeated for about `seconds`, at least three times after a first one."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def peak_bytes() -> int:
    """The largest resident memory this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main():
    """Answer one request."""
    request = records.loads(sys.stdin.read())
    from geowidth.models.config import ModelConfig
    from geowidth.models.training import TrainingSettings

    model = ModelConfig.from_json(request["model"])
    if request["probe"] == "training":
        answer = probe_training(model, TrainingSettings.from_json(request["training"]))
    else:
        answer = probe_measurement(model, request["sizes"])
    print(records.dumps({**answer, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
