"""The training loop: AdamW, warm-up and cosine, clipping, and a data order that only the seed decides.

Two runs with the same settings, seed, corpus and machine give the same bits, interrupted or not. Runs that differ only
in widths see the same batches in the same order and start from the same values (geowidth.models.transformer).
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from geowidth import memory, records
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, seed_number
from geowidth.files import PathLike
from geowidth.models.presets import Preset, preset_named
from geowidth.models.storage import save_model
from geowidth.models.training import TrainingSettings
from geowidth.models.transformer import ModelConfig, TaperedTransformer, training_flops
from geowidth.ops.threads import torch_threads
from geowidth.progress import Progress
from geowidth.text.corpus import Corpus, DataOrder, load_corpus, windows
from geowidth.train import checkpoint
from geowidth.train.optimise import accumulate_gradients, adamw, evaluation_steps, learning_rate, mean_loss

SAVE_SECONDS = 10.0


def train(
    preset: str | Preset = "nano",
    widths: Iterable[int] | None = None,
    seed: int = 0,
    out: PathLike | None = None,
    *,
    steps: int | None = None,
    arm: str | None = None,
    corpus: Corpus | PathLike = "stdlib",
    initial_scales: Iterable[float] | None = None,
    watch: Callable[[int, float, float], object] | None = None,
    stop: Callable[[], bool] | None = None,
    save_seconds: float = SAVE_SECONDS,
    **changes: Any,
) -> dict[str, Any]:
    """Train one model in folder `out` and return its result (the content of result.json).

    preset: name or Preset. widths: one FFN width per layer (None: the preset's uniform ones). steps and `changes`:
    training settings other than the preset's. arm: name under which the result is compared (default: "uniform" for
    equal widths, else "custom"). corpus: a Corpus or a source (see load_corpus). initial_scales: one factor a layer on
    the usual initial scale of its down-projection (geowidth.allocate.initial_scale).
    watch(step, loss, tokens_per_second): called after every step (None: a progress bar is shown). stop(): asked after
    every step; when true the state is saved and KeyboardInterrupt raised, as on Ctrl-C. save_seconds: time between
    states.

    A finished folder is returned as it is; an unfinished one goes on from its last state, with the same bits as an
    uninterrupted run. Raises UserError for bad settings and for a folder begun with others.
    """
    given: dict[str, Any] = {"steps": steps, "arm": arm, "corpus": corpus, "initial_scales": initial_scales}
    run = prepare(preset, widths, seed, out, **given, **changes)
    with checkpoint.held(run.folder), torch_threads(run.settings.threads), interrupts(stop) as interrupted:
        checkpoint.begin(run.folder, run.config())
        done = checkpoint.read_result(run.folder)
        if done is not None:
            return done
        if watch is not None:
            return Trainer(run, save_seconds).finish(watch, interrupted)
        with Progress(run.settings.steps, f"train {run.arm} seed {run.seed}") as bar:
            trainer = Trainer(run, save_seconds)
            bar.resume_at(trainer.step)
            return trainer.finish(lambda _, loss, speed: bar.step(text=describe(loss, speed)), interrupted)


def describe(loss: float, speed: float) -> str:
    """'loss 2.345, 9,876 tokens/s'"""
    return f"loss {loss:.3f}, {speed:,.0f} tokens/s"


class Training:
    """One training, fully decided and checked: folder, arm, model config, settings, seed, corpus."""

    def __init__(
        self,
        preset: str,
        folder: Path,
        arm: str,
        model: ModelConfig,
        settings: TrainingSettings,
        seed: int,
        corpus: Corpus,
        initial_scales: tuple[float, ...] | None = None,
    ) -> None:
        self.preset, self.folder, self.arm, self.model = preset, folder, arm, model
        self.settings, self.seed, self.corpus, self.initial_scales = settings, seed, corpus, initial_scales

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return {
            "kind": checkpoint.CONFIG_KIND,
            "schema": checkpoint.SCHEMA,
            "preset": self.preset,
            "arm": self.arm,
            "seed": self.seed,
            "model": self.model.to_json(),
            **self.scales(),
            "training": self.settings.to_json(),
            "corpus": self.corpus.to_json(),
            "environment": records.environment(),
        }

    def scales(self) -> dict[str, Any]:
        """{"initial_scales"} where there are any: files of runs without them stay as they always were."""
        return {} if self.initial_scales is None else {"initial_scales": list(self.initial_scales)}


def prepare(
    preset: str | Preset,
    widths: Iterable[int] | None,
    seed: int,
    out: PathLike | None,
    *,
    steps: int | None = None,
    arm: str | None = None,
    corpus: Corpus | PathLike = "stdlib",
    initial_scales: Iterable[float] | None = None,
    **changes: Any,
) -> Training:
    """The checked Training of `train`'s arguments; raises UserError before any work is done."""
    preset = preset_named(preset)
    if out is None:
        raise UserError("no folder was named for the run; give one (out=, or --out on the command line)")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot train in {folder}: it is a file; name a folder")
    records.check_writable(folder / checkpoint.RESULT_FILE)
    model = preset.with_widths(widths)
    model.check_memory("training a model", 4)  # its parameters, gradients and two moments
    settings = preset.with_training(steps=steps, **changes)
    check_batch_memory(model, settings)
    seed = seed_number("seed", seed)
    text = corpus if isinstance(corpus, Corpus) else load_corpus(corpus)
    for name in ("train", "validation"):
        windows(text.split(name), model.context, 1)
    if arm is None:
        arm = "uniform" if len(set(model.widths)) == 1 else "custom"
    scales = None
    if initial_scales is not None:
        scales = tuple(per_layer("initial scale", list(initial_scales), model.layers, strict=True).tolist())
    return Training(preset.name, folder, str(arm), model, settings, seed, text, scales)


def check_batch_memory(model: ModelConfig, settings: TrainingSettings) -> None:
    """Refuse a batch whose token ids, or a microbatch whose logits and their gradient, this machine has no room for."""
    batch, microbatch = settings.batch, min(settings.batch, settings.microbatch)
    ids = 2 * 8 * batch * (model.context + 1)  # where they lie and what they are, int64
    memory.check(f"a batch of {batch} sequences", ids, "use a smaller batch")
    logits = 2 * 4 * microbatch * model.context * model.vocabulary
    memory.check(f"a microbatch of {microbatch} sequences", logits, "use a smaller microbatch")


class Trainer:
    """A model under training, resumed from its folder if a state is there."""

    def __init__(self, run: Training, save_seconds: float) -> None:
        self.run, self.settings, self.save_seconds = run, run.settings, save_seconds
        self.model = TaperedTransformer(run.model, run.seed, run.initial_scales)
        self.optimizer = adamw(self.model, self.settings)
        self.data = DataOrder(run.corpus.train, run.model.context, self.settings.batch, run.seed)
        self.held_out = windows(run.corpus.validation, run.model.context, self.settings.evaluation_windows)
        progress = checkpoint.load_state(run.folder, self.model, self.optimizer)
        self.step, self.tokens, self.seconds, self.best = 0, 0, 0.0, math.inf
        if progress is not None:
            batch_tokens = self.settings.batch * run.model.context
            checkpoint.check_progress(run.folder, progress, self.settings.steps, batch_tokens)
            self.step, self.tokens, self.seconds, self.best = (
                progress[key] for key in ("step", "tokens", "seconds", "best")
            )
        self.final = math.nan  # until the last step is evaluated

    def finish(self, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Train to the last step and write model and result; returns the result."""
        metrics = checkpoint.Metrics(self.run.folder, self.step)
        try:
            self.train_steps(metrics, watch, interrupted)
        finally:
            metrics.close()
        save_model(self.model, self.run.folder)
        result = self.result()
        records.write_json(self.run.folder / checkpoint.RESULT_FILE, result)
        (self.run.folder / checkpoint.STATE_FILE).unlink(missing_ok=True)
        return result

    def train_steps(
        self, metrics: checkpoint.Metrics, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]
    ) -> None:
        due = evaluation_steps(self.settings)
        saved = start = time.monotonic()
        before, tokens_before = self.seconds, self.tokens
        while self.step < self.settings.steps:
            loss, rate = self.one_step()
            self.seconds = before + time.monotonic() - start
            line = {"tokens": self.tokens, "seconds": round(self.seconds, 3)}
            metrics.write(step=self.step, split="train", loss=loss, **line, learning_rate=rate)
            if self.step in due:
                value = mean_loss(self.model, self.held_out, self.settings.microbatch)
                check_finite("the validation loss", value, self.step, rate)
                self.final, self.best = value, min(self.best, value)
                self.seconds = before + time.monotonic() - start
                line["seconds"] = round(self.seconds, 3)
                metrics.write(step=self.step, split="validation", loss=value, **line)
            watch(self.step, loss, (self.tokens - tokens_before) / max(self.seconds - before, 1e-9))
            stopping = interrupted()
            if self.step < self.settings.steps and (stopping or time.monotonic() - saved >= self.save_seconds):
                self.save(metrics)
                saved = time.monotonic()
            if stopping and self.step < self.settings.steps:
                raise KeyboardInterrupt

    def one_step(self) -> tuple[float, float]:
        """One optimiser step; returns (mean loss of the batch in nats per byte, learning rate)."""
        rate = learning_rate(self.settings, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.data.batch(self.step)
        self.optimizer.zero_grad()
        loss = accumulate_gradients(self.model, batch[:, :-1], batch[:, 1:], self.settings.microbatch)
        check_finite("the loss", loss, self.step + 1, rate)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.step += 1
        self.tokens += batch.shape[0] * (batch.shape[1] - 1)
        return loss, rate

    def save(self, metrics: checkpoint.Metrics) -> None:
        metrics.sync()
        progress = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds, "best": self.best}
        checkpoint.save_state(self.run.folder, self.model, self.optimizer, progress)

    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        return {
            "kind": checkpoint.RESULT_KIND,
            "schema": checkpoint.SCHEMA,
            "arm": self.run.arm,
            "seed": self.run.seed,
            "widths": list(self.run.model.widths),
            **self.run.scales(),
            "loss": self.final,
            "best_loss": self.best,
            "bits_per_byte": self.final / math.log(2),
            "parameters": self.model.parameter_count(),
            "steps": self.step,
            "tokens": self.tokens,
            "flops": training_flops(self.run.model, self.tokens),
            "seconds": round(self.seconds, 3),
            "evaluation_tokens": self.held_out[:, 1:].numel(),
            "corpus": self.run.corpus.to_json(),
            "preset": self.run.preset,
            "model": self.run.model.to_json(),
            "training": self.settings.to_json(),
            "environment": records.environment(),
        }


def check_finite(what: str, loss: float, step: int, rate: float) -> None:
    """Refuse a loss that is no finite number: a diverged model is never taken for a trained one."""
    if not math.isfinite(loss):
        raise UserError(f"{what} became {loss} at step {step}; lower the learning rate ({rate:.2g})")


@contextlib.contextmanager
def interrupts(stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop: after Ctrl-C or once `stop()` is true.

    Ctrl-C is held back until the step is whole, so that the saved state is; a second one stops at once.
    """
    caught = threading.Event()
    ours = threading.current_thread() is threading.main_thread()

    def handle(*_):
        if caught.is_set():
            raise KeyboardInterrupt
        caught.set()

    before = signal.signal(signal.SIGINT, handle) if ours else None
    try:
        yield lambda: caught.is_set() or bool(stop and stop())
    finally:
        if ours:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)
