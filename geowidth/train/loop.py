"""The training loop: an optimiser, its rate, clipping, and a data order that only the seed decides.

Two runs with the same settings, seed, corpus and machine give the same bits, interrupted or not. Runs that differ only
in widths see the same batches in the same order and start from the same values (geowidth.models.transformer).
"""

import contextlib
import functools
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from geowidth.devices import Device
from geowidth.errors import flag, number, positive
from geowidth.files import PathLike
from geowidth.models.presets import Preset
from geowidth.ops.threads import torch_threads
from geowidth.progress import Progress
from geowidth.ranks import TIMEOUT, joined
from geowidth.text.corpus import Corpus
from geowidth.train import checkpoint, distributed
from geowidth.train.compiled import check_compiler, room_for_graphs
from geowidth.train.metrics import check_board
from geowidth.train.optimise import check_muon
from geowidth.train.preparation import Training, prepare
from geowidth.train.speed import peak_flops as peak_flops_of
from geowidth.train.trainer import SAVE_SECONDS, Habits, Look, Trainer
from geowidth.train.world import World


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
    device: Device = "cpu",
    parallel: str = "auto",
    patience: float = TIMEOUT,
    watch: Callable[[int, float, float], object] | None = None,
    stop: Callable[[], bool] | None = None,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
    peak_flops: float | None = None,
    look: Look | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train one model in folder `out` and return its result (the content of result.json).

    preset: name or Preset. widths: one FFN width per layer (None: those of the preset's model). steps and `changes`:
    training settings other than the preset's (geowidth.models.TrainingSettings). arm: name under which the result is
    compared (default: "uniform" for equal widths, else "custom"). corpus: a Corpus or a source (see load_corpus).
    initial_scales: one factor a layer on the usual initial scale of its down-projection
    (geowidth.allocate.initial_scale). device: "cpu", "cuda", "cuda:N", or "auto": a GPU where there is one; other
    devices, other bits. parallel: how processes that torchrun started share the work: "ddp" (each has the model),
    "fsdp" (each has a part of it), "auto" ("ddp" where there are several). patience: seconds that one of them waits for
    the others. All of them are given the same arguments, and each returns the result.
    watch(step, loss, tokens_per_second): called after every step (None: a progress bar is shown). stop(): asked after
    every step; when true the state is saved and KeyboardInterrupt raised, as on Ctrl-C. save_seconds: time between
    states, more where writing one takes long. tensorboard: write event files into `out`/tensorboard too. peak_flops:
    FLOP/s of one device at best, for MFU (default: known GPUs in bfloat16; otherwise MFU is left out). look: makes of
    the model a function that sees the gradients of every step, or takes their `norms` by block, and adds what it
    returns to the step's line of metrics (geowidth.cascade.training.block_norms).

    A finished folder is returned as it is; an unfinished one goes on from its last whole state, with the same bits as
    an uninterrupted run. Raises UserError for bad settings, for a folder begun with others, and for a run that
    diverges: its states stay, and the same command would go on from them.
    """
    parallel, device = distributed.chosen(parallel, device)
    given: dict[str, Any] = {"steps": steps, "arm": arm, "corpus": corpus, "initial_scales": initial_scales}
    with joined(str(device), patience) as ranks, contextlib.ExitStack() as stack:
        world = distributed.world_of(parallel, device, ranks)
        given |= {"copies": world.copies, "writes": world.is_first}
        run = world.in_turn(functools.partial(prepare, preset, widths, seed, out, **given, **changes))
        habits = world.together(lambda: habits_of(run, world, save_seconds, tensorboard, peak_flops, look))
        world.in_turn(lambda: begin(run, world, stack))
        stack.enter_context(torch_threads(run.settings.threads))
        stack.enter_context(generators(run.seed, world.device))
        interrupted = stack.enter_context(interrupts(stop, world))
        done = world.of_first(lambda: checkpoint.read_result(run.folder))
        if done is not None:
            return done
        if run.settings.compile:
            stack.enter_context(room_for_graphs(run.model.layers))
        return work(run, world, habits, watch, interrupted)


def begin(run: Training, world: World, stack: contextlib.ExitStack) -> None:
    """Begin the folder of `run`, or see that it was begun alike; the first process holds it as long as `stack` is."""
    if world.is_first:
        stack.enter_context(checkpoint.held(run.folder))
    else:
        checkpoint.check_seen(run.folder)
    checkpoint.begin(run.folder, run.config(world))


def work(
    run: Training,
    world: World,
    habits: Habits,
    watch: Callable[[int, float, float], object] | None,
    interrupted: Callable[[], bool],
) -> dict[str, Any]:
    """Train a Training in its folder, which is held, and show its progress unless `watch` does."""
    if watch is not None:
        return Trainer(run, world, habits).finish(watch, interrupted)
    with Progress(run.settings.steps, f"train {run.arm} seed {run.seed}") as bar:
        trainer = Trainer(run, world, habits)
        bar.resume_at(trainer.step)
        return trainer.finish(lambda _, *now: bar.step(text=trainer.describe(*now)), interrupted)


def habits_of(
    run: Training, world: World, save_seconds: float, tensorboard: bool, peak: float | None, look: Look | None = None
) -> Habits:
    """The checked Habits; UserError for what cannot be done here."""
    if run.settings.compile:
        check_compiler(world.device)
    if run.settings.optimizer == "muon":
        check_muon(world.sharded)
    if flag("tensorboard", tensorboard):
        check_board()
    save_seconds = number("save_seconds", save_seconds, "numbers from 0 up", lambda value: 0 <= value < math.inf)
    peak = peak_flops_of(world.device, run.settings.dtype) if peak is None else positive("peak_flops", peak)
    return Habits(save_seconds, tensorboard, peak, look)


@contextlib.contextmanager
def generators(seed: int, device: torch.device) -> Iterator[None]:
    """torch's random generators seeded inside the block, and afterwards as they were before it.

    Nothing in the models here draws from them while training; a layer that does (dropout, in a model from outside)
    draws the same numbers in every run of a seed, interrupted or not.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextlib.contextmanager
def interrupts(stop: Callable[[], bool] | None, world: World | None = None) -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop: after Ctrl-C or once `stop()` is true.

    Ctrl-C is held back until the step is whole, so that the saved state is; a second one stops at once. Of many
    processes all stop after the same step, as soon as one is to; a launcher passes signals on, and to those that the
    terminal sent them to already, so there a second one, and SIGTERM, are like the first.
    """
    many = world is not None and world.size > 1
    caught = threading.Event()
    ours = threading.current_thread() is threading.main_thread()

    def handle(*_):
        if caught.is_set() and not many:
            raise KeyboardInterrupt
        caught.set()

    numbers = [signal.SIGINT, *([signal.SIGTERM] if many else [])] if ours else []
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: caught.is_set() or bool(stop and stop())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
