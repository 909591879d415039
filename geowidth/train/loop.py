"""The training loop: an optimiser, its rate, clipping, and a data order that only the seed decides.

Two runs with the same settings, seed, corpus and machine give the same bits, interrupted or not. Runs that differ only
in widths see the same batches in the same order and start from the same values (geowidth.models.transformer).
"""

import contextlib
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
from geowidth.text.corpus import Corpus
from geowidth.train import checkpoint
from geowidth.train.compiled import check_compiler, room_for_graphs
from geowidth.train.metrics import check_board
from geowidth.train.optimise import check_muon
from geowidth.train.preparation import Training, prepare
from geowidth.train.speed import peak_flops as peak_flops_of
from geowidth.train.trainer import SAVE_SECONDS, Habits, Trainer
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
    watch: Callable[[int, float, float], object] | None = None,
    stop: Callable[[], bool] | None = None,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
    peak_flops: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train one model in folder `out` and return its result (the content of result.json).

    preset: name or Preset. widths: one FFN width per layer (None: those of the preset's model). steps and `changes`:
    training settings other than the preset's (geowidth.models.TrainingSettings). arm: name under which the result is
    compared (default: "uniform" for equal widths, else "custom"). corpus: a Corpus or a source (see load_corpus).
    initial_scales: one factor a layer on the usual initial scale of its down-projection
    (geowidth.allocate.initial_scale). device: "cpu", "cuda", "cuda:N", or "auto": a GPU where there is one; other
    devices, other bits.
    watch(step, loss, tokens_per_second): called after every step (None: a progress bar is shown). stop(): asked after
    every step; when true the state is saved and KeyboardInterrupt raised, as on Ctrl-C. save_seconds: time between
    states, more where writing one takes long. tensorboard: write event files into `out`/tensorboard too. peak_flops:
    FLOP/s of one device at best, for MFU (default: known GPUs in bfloat16; otherwise MFU is left out).

    A finished folder is returned as it is; an unfinished one goes on from its last whole state, with the same bits as
    an uninterrupted run. Raises UserError for bad settings, for a folder begun with others, and for a run that
    diverges: its states stay, and the same command would go on from them.
    """
    world = World(device)
    given: dict[str, Any] = {"steps": steps, "arm": arm, "corpus": corpus, "initial_scales": initial_scales}
    run = prepare(preset, widths, seed, out, **given, **changes)
    habits = habits_of(run, world.device, save_seconds, tensorboard, peak_flops)
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoint.held(run.folder))
        stack.enter_context(torch_threads(run.settings.threads))
        stack.enter_context(generators(run.seed, world.device))
        interrupted = stack.enter_context(interrupts(stop))
        checkpoint.begin(run.folder, run.config(world))
        done = checkpoint.read_result(run.folder)
        if done is not None:
            return done
        if run.settings.compile:
            stack.enter_context(room_for_graphs(run.model.layers))
        return work(run, world, habits, watch, interrupted)


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
    run: Training, device: torch.device, save_seconds: float, tensorboard: bool, peak: float | None
) -> Habits:
    """The checked Habits; UserError for what cannot be done here."""
    if run.settings.compile:
        check_compiler(device)
    if run.settings.optimizer == "muon":
        check_muon()
    if flag("tensorboard", tensorboard):
        check_board()
    save_seconds = number("save_seconds", save_seconds, "numbers from 0 up", lambda value: 0 <= value < math.inf)
    peak = peak_flops_of(device, run.settings.dtype) if peak is None else positive("peak_flops", peak)
    return Habits(save_seconds, tensorboard, peak)


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
