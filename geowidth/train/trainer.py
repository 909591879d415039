"""A model under training: from its last state to the last step, with metrics, evaluations and states on the way."""

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.storage import save_parameters
from geowidth.models.transformer import TaperedTransformer
from geowidth.text.corpus import DataOrder, windows
from geowidth.train import checkpoint, state
from geowidth.train.compiled import Graphs, compile_blocks
from geowidth.train.gradients import GradientNorms
from geowidth.train.losses import accumulate_gradients, mean_loss
from geowidth.train.metrics import Metrics, NoMetrics
from geowidth.train.optimise import evaluation_steps, learning_rate, make_optimizers
from geowidth.train.preparation import Training
from geowidth.train.speed import utilisation
from geowidth.train.supervision import Supervision, is_supervised, run_flops
from geowidth.train.world import World

Look = Callable[[torch.nn.Module], Callable[..., dict[str, Any]]]
SAVE_SECONDS = 10.0
GO_ON, SAVE, STOP = range(3)  # what a process wishes after a step; the strongest wish of any is done by all
SAVE_SHARE = 20  # a state that takes long to write is written after this many times as long


@dataclass(frozen=True)
class Habits:
    """What a training does that no number in its result depends on.

    save_seconds: time between states; more where writing one takes over a twentieth of it (0: one after every step).
    tensorboard: whether event files are written too. peak_flops: of one device, for MFU; None where not known.
    look: given the model before the first step, it makes a function that is called once a step, with the gradients of
    all processes in place and not clipped yet; what that returns, JSON values by name, goes into the step's line. A
    function with a parameter `norms` is given the gradient norms of the model's blocks, float64 (layers,).
    """

    save_seconds: float = SAVE_SECONDS
    tensorboard: bool = False
    peak_flops: float | None = None
    look: Look | None = None


class Trainer:
    """A model under training, resumed from its folder if a state is there."""

    def __init__(self, run: Training, world: World, habits: Habits) -> None:
        self.run, self.settings, self.world, self.habits = run, run.settings, world, habits
        self.model = world.make(run.model, run.seed, run.initial_scales)
        self.graphs = prepare_model(self.model, run)
        self.network = world.wrap(self.model)
        self.optimizers = make_optimizers(self.model, self.settings)
        self.look = None if habits.look is None else habits.look(self.model)
        self.reads_norms = self.look is not None and "norms" in inspect.signature(self.look).parameters
        self.gradients = gradient_norms(self.model)
        self.step_tokens = self.settings.batch * run.model.context
        self.data = DataOrder(run.corpus.train, run.model.context, self.settings.batch, run.seed)
        self.supervision = Supervision(run.model, run.settings, run.seed) if is_supervised(run.settings) else None
        self.held_out = windows(run.corpus.validation, run.model.context, self.settings.evaluation_windows)
        self.step, self.seconds, self.best = 0, 0.0, math.inf
        self.final = math.nan  # until the last step is evaluated
        self.resume()
        self.timed_from = self.step, self.seconds  # until the first step here is done, which may compile
        self.first = self.step + 1

    def resume(self) -> None:
        """Go on from the newest whole state in the folder, if there is one."""
        arguments = (self.model, self.optimizers, self.settings.steps, self.step_tokens)
        progress = state.load_state(self.run.folder, *arguments, self.world)
        if progress is not None:
            self.step, self.seconds, self.best = (progress[key] for key in ("step", "seconds", "best"))

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.step_tokens

    @property
    def speed(self) -> float:
        """Tokens a second in this process, evaluations included, its first step left out once there are more."""
        step, seconds = self.timed_from
        spent = self.seconds - seconds
        return (self.step - step) * self.step_tokens / spent if spent > 0 else 0.0

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation at that speed; None where the device's peak is not known."""
        if self.habits.peak_flops is None:
            return None
        flops = run_flops(self.run.model, self.settings) / (self.settings.steps * self.step_tokens)
        return utilisation(flops * self.speed, 1.0, self.habits.peak_flops, self.world.size)

    def finish(self, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Train to the last step and write model and result; returns the result."""
        arguments = (self.run.folder, self.step, self.habits.tensorboard)
        metrics = self.world.together(lambda: Metrics(*arguments) if self.world.is_first else NoMetrics())
        try:
            self.train_steps(metrics, watch, interrupted)
        finally:
            metrics.close()
        parameters = self.world.whole(self.model)
        return self.world.of_first(lambda: self.write(parameters))

    def write(self, parameters: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Leave the finished model and, last, its result in the folder; returns the result."""
        save_parameters(parameters, self.run.model, self.run.folder)
        self.run.corpus.write_tokenizer(self.run.folder)
        result = self.result()
        records.write_json(self.run.folder / checkpoint.RESULT_FILE, result)
        state.drop_states(self.run.folder)
        return result

    def train_steps(
        self, metrics: Metrics, watch: Callable[[int, float, float], object], interrupted: Callable[[], bool]
    ) -> None:
        due, clock = evaluation_steps(self.settings), Clock(self.seconds, self.habits.save_seconds)
        while self.step < self.settings.steps:
            facts = self.one_step()
            self.seconds = clock.seconds()
            metrics.write(step=self.step, split="train", **facts, **self.place(), **self.pace())
            if self.step in due:
                self.evaluate(facts["learning_rate"])
                self.seconds = clock.seconds()
                metrics.write(step=self.step, split="validation", loss=self.final, **self.place())
            watch(self.step, facts["loss"], self.speed)
            if self.step == self.first < self.settings.steps:
                self.timed_from = self.step, self.seconds
            wish = self.world.most(STOP if interrupted() else SAVE if clock.state_is_due() else GO_ON)
            unfinished = self.step < self.settings.steps
            if unfinished and wish >= SAVE:
                with clock.saving():
                    self.save(metrics)
            if unfinished and wish == STOP:
                raise KeyboardInterrupt

    def one_step(self) -> dict[str, Any]:
        """One optimiser step: {"loss": mean of the batch in nats per id, "learning_rate", "gradient_norm"}, with
        supervision "objective" too, and what `look` saw."""
        rate = learning_rate(self.settings, self.step)
        self.optimizers.set_rate(rate)
        losses = self.gather_gradients()
        self.check_finite("the loss", sum(losses.values()), self.step + 1, rate)
        seen, norms = self.see()
        norm = self.world.clip(self.model.parameters(), self.settings.clip, norms)
        self.check_finite("the norm of the gradient", norm, self.step + 1, rate)
        self.optimizers.step()
        self.step += 1
        return {**losses, "learning_rate": rate, "gradient_norm": norm, **seen}

    def gather_gradients(self) -> dict[str, float]:
        """The gradient of the whole batch, and its losses: {"loss"} of the last exit and, where early exits or layer
        dropout make what is minimised another one, {"objective"}."""
        rows = self.world.rows(self.settings.batch)
        own = self.data.batch(self.step, rows)
        step = None if self.supervision is None else self.supervision.at(self.step, rows)
        self.optimizers.zero_grad()
        found = accumulate_gradients(
            self.network, own[:, :-1], own[:, 1:], self.settings.microbatch, self.world, self.documents_of, step
        )
        if step is None:
            return {"loss": found}
        return {"loss": step.last_loss(self.world) / self.step_tokens, "objective": found}

    def see(self) -> tuple[dict[str, Any], list[torch.Tensor] | None]:
        """(what `look` saw, norms of the single gradients if they were measured on the way and still hold)."""
        if not (self.reads_norms or self.settings.equal_gradients):
            return ({} if self.look is None else self.look()), None
        norms = self.gradients.measure()
        seen = {} if self.look is None else self.look(norms=norms) if self.reads_norms else self.look()
        if self.settings.equal_gradients:
            self.gradients.equalise(norms)
        return seen, self.gradients.each

    def documents_of(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """The document of every token of some windows, for the mask; None without one."""
        return self.run.corpus.documents(tokens) if self.settings.document_mask else None

    def evaluate(self, rate: float) -> None:
        """Take the validation loss after this step."""
        pieces = self.settings.microbatch
        loss = mean_loss(self.network, self.held_out, pieces, self.world, self.documents_of)
        self.check_finite("the validation loss", loss, self.step, rate)
        self.final, self.best = loss, min(self.best, loss)

    def check_finite(self, what: str, value: float, step: int, rate: float) -> None:
        """Refuse what is no finite number: a diverged model is never taken for a trained one."""
        if math.isfinite(value):
            return
        saved = state.saved_step(self.run.folder)
        left = f"the last good state, of step {saved}, stays in {self.run.folder}" if saved else "no state was saved"
        raise UserError(
            f"{what} became {value} at step {step}, at a learning rate of {rate:.2g}; {left}: "
            f"{state.DIVERGED} and train in another folder"
        )

    def place(self) -> dict[str, float]:
        """Where a line of metrics stands."""
        return {"tokens": self.tokens, "seconds": round(self.seconds, 3)}

    def pace(self) -> dict[str, float]:
        """Tokens a second and, where the peak is known, MFU."""
        pace, mfu = {"tokens_per_second": round(self.speed, 1)}, self.mfu
        return pace if mfu is None else pace | {"mfu": round(mfu, 4)}

    def describe(self, loss: float, speed: float) -> str:
        """What the progress line shows beside the steps."""
        return describe(loss, speed, self.mfu, None if self.graphs is None else self.graphs.count)

    def save(self, metrics: Metrics) -> None:
        self.world.together(metrics.sync)
        progress = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds, "best": self.best}
        state.save_state(self.run.folder, self.model, self.optimizers, progress, self.settings.keep, self.world)

    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        run = self.run
        return {
            "kind": checkpoint.RESULT_KIND,
            "schema": checkpoint.SCHEMA,
            "arm": run.arm,
            "seed": run.seed,
            "widths": list(run.model.widths),
            **run.scales(),
            "loss": self.final,
            "unit": run.corpus.loss_unit,
            "best_loss": self.best,
            "bits_per_byte": run.corpus.bits_per_byte(self.final),
            "parameters": self.model.parameter_count(),
            "steps": self.step,
            "tokens": self.tokens,
            "flops": run_flops(run.model, self.settings, self.step),
            "seconds": round(self.seconds, 3),
            **self.pace(),
            **({} if self.graphs is None else {"compiled": self.graphs.to_json()}),
            "evaluation_tokens": self.held_out[:, 1:].numel(),
            "corpus": run.corpus.to_json(),
            "preset": run.preset,
            "model": run.model.to_json(),
            "training": self.settings.to_json(),
            "environment": records.environment() | self.world.to_json(),
        }


def gradient_norms(model: TaperedTransformer) -> GradientNorms:
    """The GradientNorms of the blocks of `model` and of all its parameters."""
    return GradientNorms([list(block.parameters()) for block in model.blocks], model.parameters())


def prepare_model(model: TaperedTransformer, run: Training) -> Graphs | None:
    """Let `model` compute as the settings say; returns the count of its graphs if it is compiled."""
    model.compute_in(None if run.settings.dtype == "float32" else getattr(torch, run.settings.dtype))
    model.recompute_in_backward(run.settings.recompute)
    return compile_blocks(model) if run.settings.compile else None


class Clock:
    """Seconds of a training over all its processes, and whether the next state is due."""

    def __init__(self, before: float, save_seconds: float) -> None:
        self.before, self.save_seconds = before, save_seconds
        self.start = self.saved = time.monotonic()
        self.wait = save_seconds

    def seconds(self) -> float:
        """Since the training began, the time between its processes left out."""
        return self.before + time.monotonic() - self.start

    def state_is_due(self) -> bool:
        return time.monotonic() - self.saved >= self.wait

    def saving(self) -> "Clock":
        """Around the writing of a state: how long it takes decides when the next one is due."""
        return self

    def __enter__(self) -> None:
        self.saved = time.monotonic()

    def __exit__(self, *_: object) -> None:
        began, self.saved = self.saved, time.monotonic()
        cost = SAVE_SHARE * (self.saved - began)
        self.wait = max(self.save_seconds, cost) if self.save_seconds else 0.0


def describe(loss: float, speed: float, mfu: float | None = None, graphs: int | None = None) -> str:
    """'loss 2.345, 9,876 tokens/s, MFU 41.2 %, 4 graphs'; what is not known is left out."""
    words = [f"loss {loss:.3f}", f"{speed:,.0f} tokens/s"]
    words += [] if mfu is None else [f"MFU {100 * mfu:.1f} %"]
    return ", ".join(words + ([] if graphs is None else [f"{graphs} graph{'s' * (graphs != 1)}"]))
