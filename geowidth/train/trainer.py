"""A model under training: from its last state to the last step, with metrics, evaluations and states on the way."""

import math
import time
from collections.abc import Callable
from typing import Any

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.config import training_flops
from geowidth.models.storage import save_model
from geowidth.models.transformer import TaperedTransformer
from geowidth.text.corpus import DataOrder, windows
from geowidth.train import checkpoint, state
from geowidth.train.losses import accumulate_gradients, mean_loss
from geowidth.train.metrics import Metrics
from geowidth.train.optimise import adamw, evaluation_steps, learning_rate
from geowidth.train.preparation import Training
from geowidth.train.world import World


class Trainer:
    """A model under training, resumed from its folder if a state is there."""

    def __init__(self, run: Training, save_seconds: float, world: World) -> None:
        self.run, self.settings, self.save_seconds, self.world = run, run.settings, save_seconds, world
        self.model = TaperedTransformer(run.model, run.seed, run.initial_scales).to(world.device)
        self.network = world.wrap(self.model)
        self.optimizer = adamw(self.model, self.settings)
        self.data = DataOrder(run.corpus.train, run.model.context, self.settings.batch, run.seed)
        self.held_out = windows(run.corpus.validation, run.model.context, self.settings.evaluation_windows)
        progress = state.load_state(run.folder, self.model, self.optimizer)
        self.step, self.tokens, self.seconds, self.best = 0, 0, 0.0, math.inf
        if progress is not None:
            batch_tokens = self.settings.batch * run.model.context
            state.check_progress(run.folder, progress, self.settings.steps, batch_tokens)
            self.step, self.tokens, self.seconds, self.best = (
                progress[key] for key in ("step", "tokens", "seconds", "best")
            )
        self.final = math.nan  # until the last step is evaluated

    def finish(self, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Train to the last step and write model and result; returns the result."""
        metrics = Metrics(self.run.folder, self.step)
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
        self, metrics: Metrics, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]
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
                value = mean_loss(self.network, self.held_out, self.settings.microbatch, self.world)
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
        own = self.data.batch(self.step, self.world.rows(self.settings.batch))
        self.optimizer.zero_grad()
        loss = accumulate_gradients(self.network, own[:, :-1], own[:, 1:], self.settings.microbatch, self.world)
        check_finite("the loss", loss, self.step + 1, rate)
        self.world.clip(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.step += 1
        self.tokens += self.settings.batch * self.run.model.context
        return loss, rate

    def save(self, metrics: Metrics) -> None:
        metrics.sync()
        progress = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds, "best": self.best}
        state.save_state(self.run.folder, self.model, self.optimizer, progress)

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


def describe(loss: float, speed: float) -> str:
    """'loss 2.345, 9,876 tokens/s'"""
    return f"loss {loss:.3f}, {speed:,.0f} tokens/s"


def check_finite(what: str, loss: float, step: int, rate: float) -> None:
    """Refuse a loss that is no finite number: a diverged model is never taken for a trained one."""
    if not math.isfinite(loss):
        raise UserError(f"{what} became {loss} at step {step}; lower the learning rate ({rate:.2g})")
