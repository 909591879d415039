"""A training told before it is begun: parameters, tokens, FLOPs, memory and time, counted but for the time here."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from geowidth.devices import Device
from geowidth.models.config import ModelConfig
from geowidth.models.presets import Preset
from geowidth.models.training import TrainingSettings
from geowidth.ops.threads import torch_threads
from geowidth.plan.footprint import Footprint, footprint
from geowidth.plan.probe import run_probe
from geowidth.progress import duration, size
from geowidth.train.speed import PEAKS
from geowidth.train.supervision import mean_exits, run_flops

GPU, GPU_PEAK = "H100", dict(PEAKS)["H100"]
MFU = 0.4  # share of the peak that well-kept trainings of this size reach
CHEAP = 5e10  # FLOPs of a step of one sequence: up to here whole steps are timed, beyond only a product of matrices
PRODUCT_SECONDS = 0.3


@dataclass(frozen=True)
class TrainingPlan:
    """What a training of `preset` takes.

    tokens: that it reads. flops: see run_flops; evaluations are not counted. footprint: bytes in one process.
    gpu_seconds: on one H100 at MFU of its peak. here_seconds, timed: on this machine, and how that was found.
    """

    preset: Preset
    tokens: int
    flops: int
    footprint: Footprint
    gpu_seconds: float
    here_seconds: float | None = None
    timed: str = ""

    def lines(self, arm: str = "", device: Device = "cpu") -> list[str]:
        """The plan in words. arm: whose widths these are. device: what `here_seconds` is of."""
        model, settings = self.preset.model, self.preset.training
        of_device = f"on this machine's {device}, as busy as it is now ({self.timed})"
        rows: list[tuple[str, str]] = [
            ("model", f"{self.preset.name}: {_shape(model)}"),
            ("widths", " ".join(filter(None, [arm, _widths(model)]))),
            ("parameters", f"{model.parameters:,}, {model.ffn_parameters:,} of them in FFNs"),
            (
                "tokens",
                f"{self.tokens:,}, {self.tokens / model.parameters:.3g} a parameter; {_batches(model, settings)}",
            ),
            ("schedule", _rates(settings)),
            *_interventions(model, settings),
            ("FLOPs", f"{self.flops:.3g}"),
            ("memory", f"about {size(self.footprint.total)}: {_parts(self.footprint)}"),
            ("disk", f"{size(4 * model.parameters)} for the model, {size(_states(self))} for states on the way"),
            ("time", f"about {duration(self.gpu_seconds)} on one {GPU} at {MFU:.0%} of {GPU_PEAK / 1e12:g} TFLOP/s"),
        ]
        if self.here_seconds is not None:
            rows.append(("", f"{'about' if self.timed == STEPS else 'at least'} {days(self.here_seconds)} {of_device}"))
        return [f"{name + ':' if name else '':12} {text}" for name, text in rows]


STEPS, PRODUCTS = "steps were timed", "products of its matrices were timed"


def plan_training(preset: Preset) -> TrainingPlan:
    """The TrainingPlan of a preset, without the time on this machine: nothing is run."""
    model, settings = preset.model, preset.training
    tokens = settings.steps * settings.batch * model.context
    flops = run_flops(model, settings)
    return TrainingPlan(preset, tokens, flops, footprint(model, settings), flops / (MFU * GPU_PEAK))


def time_here(
    plan: TrainingPlan, device: Device = "cpu", probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> TrainingPlan:
    """The plan with the time on this machine, found within a few seconds.

    On the CPU steps of a small model are timed, of one sequence each. For a large one, and on a GPU, the product of
    FFN matrices is: the whole then takes longer. probe: answers requests for timed steps (None: `run_probe`).
    """
    model, settings = plan.preset.model, plan.preset.training
    step = run_flops(model, settings) / (settings.steps * settings.batch)
    cheap = step <= CHEAP
    if torch.device(device).type != "cpu" or not cheap:
        return replace(plan, here_seconds=plan.flops / product_speed(model, settings, device), timed=PRODUCTS)
    one = replace(settings, batch=1, microbatch=1, compile=False)
    request = {"probe": "training", "model": model.to_json(), "training": one.to_json()}
    found = (probe or run_probe)(request)
    seconds = settings.steps * settings.batch * found["step"]
    seconds += settings.evaluations * settings.evaluation_windows * found["window"]
    return replace(plan, here_seconds=seconds, timed=STEPS)


def product_speed(model: ModelConfig, settings: TrainingSettings, device: Device = "cpu") -> float:
    """FLOP/s of the model's FFN product on `device`, in the dtype and on the threads of the settings."""
    dtype = getattr(torch, settings.dtype)
    tokens, width = min(2048, settings.microbatch * model.context), max(1, max(model.widths))
    x = torch.ones(tokens, model.dimension, dtype=dtype, device=device)
    weight = torch.ones(model.dimension, width, dtype=dtype, device=device)

    def product():
        x @ weight
        if x.is_cuda:
            torch.cuda.synchronize(x.device)

    with torch_threads(settings.threads), torch.no_grad():
        return 2 * x.numel() * width * runs_a_second(product)


def runs_a_second(work: Callable[[], object]) -> float:
    """How often `work` runs in a second on this machine, as busy as it is now; a first run is left out."""
    work()
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < PRODUCT_SECONDS:
        work()
        count += 1
    return count / (time.perf_counter() - start)


def _shape(model):
    heads = f"{model.heads} heads" + (f" ({model.key_heads} of keys)" if model.key_heads else "")
    if model.layer_heads is not None:
        heads = f"heads {' '.join(map(str, model.layer_heads))}"
    gate = " with a gate" if model.gated else ""
    return (
        f"{model.layers} layers of dimension {model.dimension}, {heads}, {model.activation}{gate}, "
        f"vocabulary {model.vocabulary:,}, context {model.context:,}"
    )


def _widths(model):
    one = len(set(model.widths)) == 1
    return f"{model.widths[0]:,} in every layer" if one else " ".join(map(str, model.widths))


def _share(tokens, model):
    return f"{tokens / model.parameters:.3g}"


def _batches(model, settings):
    pieces = -(-settings.batch // settings.microbatch)
    words = f"{settings.steps:,} steps of {settings.batch} x {model.context:,}"
    return words + (f" in {pieces} pieces" if pieces > 1 else "")


def _rates(settings):
    rise, final = round(settings.warmup * settings.steps), settings.learning_rate * settings.final_rate
    fall = "half a cosine" if settings.decay == "cosine" else f"a line over the last {settings.decay_share:.0%}"
    return (
        f"{settings.optimizer} in {settings.dtype}, learning rate {settings.learning_rate:.2g} after {rise:,} steps of "
        f"warm-up, then {fall} to {final:.2g}"
    )


def _interventions(model, settings):
    """Rows about how gradients reach the blocks, where it is another way than the plain one."""
    words = []
    if model.repeat_times > 1:
        words.append(f"the last {model.repeat_last} blocks {model.repeat_times} times")
    if settings.equal_gradients:
        words.append("gradients of all blocks at one norm")
    if settings.exit_loss:
        exits = mean_exits(settings, len(model.order), settings.steps)
        words.append(f"{exits:.3g} exits a step, the last among them ({settings.exit_weights})")
    if settings.layer_dropout:
        words.append(f"layer dropout up to {settings.layer_dropout:g}")
    return [("gradients", "; ".join(words))] if words else []


def _parts(found):
    names = ("weights", "gradients", "moments", "activations", "logits")
    return ", ".join(f"{name} {size(getattr(found, name))}" for name in names)


def _states(plan):
    return plan.preset.training.keep * (plan.footprint.weights + plan.footprint.moments)


def days(seconds: float) -> str:
    """Seconds as people say them, also where they are many: '3 h 20 min', '12 days'."""
    return duration(seconds) if seconds < 3 * 86400 else f"{seconds / 86400:,.0f} days"


COLUMNS = ("preset", "parameters", "layers", "d", "heads", "base width", "context", "tokens", "FLOPs", "memory", GPU)


def preset_rows(presets: Iterable[Preset]) -> list[dict[str, Any]]:
    """One row a preset, {column: number}: what `geowidth plan presets` prints."""
    return [_row(plan_training(preset)) for preset in presets]


def _row(plan):
    model = plan.preset.model
    cells = (plan.preset.name, model.parameters, model.layers, model.dimension, model.heads, plan.preset.base_width)
    cells += (model.context, plan.tokens, plan.flops, plan.footprint.total, plan.gpu_seconds / 3600)
    return dict(zip(COLUMNS, cells, strict=True))


def preset_table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    head = [*COLUMNS[:-1], f"hours on one {GPU}"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join(_cells(row))} |" for row in rows])


def _cells(row):
    words = {
        "parameters": lambda n: f"{n / 1e6:,.4g}M",
        "tokens": lambda n: f"{n / 1e9:.3g}B" if n >= 1e8 else f"{n / 1e6:.3g}M",
        "FLOPs": lambda n: f"{n:.2e}".replace("e+", "e"),
        "memory": size,
        GPU: lambda hours: f"{hours:,.3g}" if hours >= 0.01 else "0.00",
    }
    return [words.get(name, str)(value) for name, value in row.items()]
