"""Parameters, FLOPs, memory, files and time of a task: exact where they can be counted, probed where they must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from geowidth.errors import choose
from geowidth.plan.probe import run_probe
from geowidth.train.processes import default_processes

if TYPE_CHECKING:
    from geowidth.models.config import ModelConfig
    from geowidth.models.presets import Preset
    from geowidth.plan.models import ModelSizes

TASKS = ("train", "measure", "calibrate", "run")
_START_SECONDS = 4.0  # imports and reading the corpus
# Processes that start one after another: the command itself, and its rounds of workers.
_STARTS = {"train": 1, "measure": 1, "calibrate": 2, "run": 3}
_PROBE_SIZES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Estimate:
    """What a task takes. parameters: of its largest model. models: trainings. flops: of all trainings.

    memory: bytes, of all processes that run side by side. disk: bytes kept. seconds: on this machine as busy as it is
    now. files: what will be written. facts: the numbers behind them.
    """

    task: str
    parameters: int
    ffn_parameters: int
    models: int
    flops: int
    memory: int
    disk: int
    seconds: float
    files: list[str]
    facts: dict[str, Any] = field(default_factory=dict)


def estimate(
    task: str,
    preset: Preset,
    *,
    widths: Iterable[int] | None = None,
    models: Sequence[Sequence[int]] | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    processes: int = 1,
    elsewhere: bool = False,
    probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Estimate:
    """The Estimate of a task: "train", "measure", "calibrate" or "run".

    preset: Preset. widths: of the model (None: the preset's). models: widths of every model that is trained, seeds
    included (None: one). steps: of every training. tokens: in the measured clouds. processes: trainings side by side.
    elsewhere: they run on other machines, taken to be as fast as this one; `memory` is then this machine's alone, and
    facts["worker_bytes"] that of one training. probe: answers timing requests (None: `run_probe`).
    """
    choose("task", task, TASKS)
    probe = run_probe if probe is None else probe
    config, settings = preset.with_widths(widths), preset.with_training(steps=steps)
    models = [config.widths] if models is None else models
    tokens = preset.run.measured_tokens if tokens is None else tokens
    largest = max((preset.with_widths(m) for m in models), key=parameter_count)
    largest.check_memory(f"the model that plan {task} times,", 1 if task == "measure" else 4)
    parts = []
    if task != "measure":
        parts.append(_training(preset, models, settings, processes, probe, elsewhere))
    if task != "train":
        parts.append(_measurement(config, tokens, default_processes() if elsewhere else processes, probe))
    return Estimate(
        task,
        parameter_count(largest),
        largest.ffn_parameters,
        0 if task == "measure" else len(models),
        sum(part["flops"] for part in parts),
        max(part["memory"] for part in parts),
        sum(part["disk"] for part in parts),
        _START_SECONDS * _STARTS[task] + sum(part["seconds"] for part in parts),
        [name for part in parts for name in part["files"]],
        {name: value for part in parts for name, value in part["facts"].items()},
    )


def estimate_model(
    sizes: ModelSizes,
    *,
    tokens: int,
    processes: int = 1,
    probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Estimate:
    """The Estimate of measuring a model that a ModelSizes (geowidth.plan.models) describes."""
    probe = run_probe if probe is None else probe
    config = sizes.config
    part = _measurement(config, tokens, processes, probe, sizes.windows(tokens), whole=False)
    memory = part["memory"] + 4 * sizes.parameters
    kept = (part["flops"], memory, part["disk"], part["seconds"] + _START_SECONDS, part["files"], part["facts"])
    return Estimate("measure", sizes.parameters, config.ffn_parameters, 0, *kept)


def parameter_count(config: ModelConfig) -> int:
    """Distinct parameters of a TaperedTransformer of that ModelConfig."""
    return config.parameters


def _training(preset, models, settings, processes, probe, elsewhere):
    from geowidth.train.supervision import run_flops

    configs = [preset.with_widths(widths) for widths in models]
    length = configs[0].context
    tokens = settings.steps * settings.batch * length
    flops = [run_flops(config, settings) for config in configs]
    typical = configs[sorted(range(len(configs)), key=flops.__getitem__)[len(configs) // 2]]
    found = probe({"probe": "training", "model": typical.to_json(), "training": settings.to_json()})
    windows = settings.evaluations * settings.evaluation_windows
    one = settings.steps * found["step"] + windows * found["window"]
    side_by_side = min(processes, len(models))
    # Widths change the speed by about as much as they change the FLOPs.
    work = one * sum(flops) / run_flops(typical, settings)
    largest = max(parameter_count(config) for config in configs)
    return {
        "flops": sum(flops),
        "seconds": max(work / side_by_side, one),
        "memory": 0 if elsewhere else side_by_side * found["peak_bytes"],
        # Kept: the weights; while a model trains also its state (weights and two moments).
        "disk": sum(4 * parameter_count(config) for config in configs) + side_by_side * 12 * largest,
        "files": [f"{len(models)} training folders (config.json, metrics.jsonl, model.safetensors, result.json)"],
        "facts": {
            "steps": settings.steps,
            "tokens_per_model": tokens,
            "seconds_per_step": found["step"],
            "seconds_per_model": one,
            "processes": side_by_side,
            "worker_bytes": found["peak_bytes"],
            "elsewhere": elsewhere,
        },
    }


def _measurement(config, tokens, processes, probe, passes=None, whole=True):
    """What measuring takes. passes: forward passes over a context (default: one a token, each with its own context).

    whole: probe the whole model; else one block of it and a small vocabulary, which stands for all of a large model.
    """
    passes = tokens if passes is None else passes
    sizes = sorted({min(size, max(4, tokens)) for size in _PROBE_SIZES})
    widest = (max(config.widths),)
    probed = config if whole else replace(config, layers=1, widths=widest, vocabulary=256, tied=True)
    found = probe({"probe": "measurement", "model": probed.to_json(), "sizes": sizes})
    window = found["window"] * (1 if whole else config.layers)
    layer = extrapolate(sizes, found["seconds"], tokens)
    weights = parameter_count(config) - config.vocabulary * config.dimension
    clouds = 2 * config.layers * tokens * config.dimension * 4
    return {
        # Forward passes of the model over the contexts, and three Gram matrices a layer.
        "flops": 2 * weights * passes * config.context + config.layers * 3 * 2 * tokens**2 * config.dimension,
        "seconds": passes * window + config.layers * layer / min(processes, config.layers),
        # Float64 distances of both clouds in three geometries and four matrices of Gromov-Wasserstein, side by side.
        "memory": found["peak_bytes"] + clouds + processes * (2 * 3 + 4) * 8 * tokens**2,
        "disk": 1024 * 4 * config.layers,
        "files": ["work.json"],
        "facts": {"measured_tokens": tokens, "seconds_per_measured_layer": layer, "state_bytes": clouds},
    }


def extrapolate(sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
    """Time at `size` from times at smaller sizes, along the power law of the two largest, between square and cube."""
    if size <= sizes[-1] or len(sizes) < 2:
        return seconds[-1]
    rate = math.log(max(seconds[-1], 1e-9) / max(seconds[-2], 1e-9)) / math.log(sizes[-1] / sizes[-2])
    return seconds[-1] * (size / sizes[-1]) ** min(max(rate, 2.0), 3.0)
