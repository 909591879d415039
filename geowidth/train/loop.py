"""The training loop: AdamW, warm-up and cosine, clipping, and a data order that only the seed decides.

Two runs with the same settings, seed, corpus and machine give the same bits, interrupted or not. Runs that differ only
in widths see the same batches in the same order and start from the same values (geowidth.models.transformer).
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from geowidth.devices import Device
from geowidth.files import PathLike
from geowidth.models.presets import Preset
from geowidth.ops.threads import torch_threads
from geowidth.progress import Progress
from geowidth.text.corpus import Corpus
from geowidth.train import checkpoint
from geowidth.train.preparation import prepare
from geowidth.train.trainer import Trainer, describe
from geowidth.train.world import World

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
    device: Device = "cpu",
    watch: Callable[[int, float, float], object] | None = None,
    stop: Callable[[], bool] | None = None,
    save_seconds: float = SAVE_SECONDS,
    **changes: Any,
) -> dict[str, Any]:
    """Train one model in folder `out` and return its result (the content of result.json).

    preset: name or Preset. widths: one FFN width per layer (None: those of the preset's model). steps and `changes`:
    training settings other than the preset's. arm: name under which the result is compared (default: "uniform" for
    equal widths, else "custom"). corpus: a Corpus or a source (see load_corpus). initial_scales: one factor a layer on
    the usual initial scale of its down-projection (geowidth.allocate.initial_scale). device: "cpu", "cuda", "cuda:N",
    or "auto": a GPU where there is one; other devices, other bits.
    watch(step, loss, tokens_per_second): called after every step (None: a progress bar is shown). stop(): asked after
    every step; when true the state is saved and KeyboardInterrupt raised, as on Ctrl-C. save_seconds: time between
    states.

    A finished folder is returned as it is; an unfinished one goes on from its last state, with the same bits as an
    uninterrupted run. Raises UserError for bad settings and for a folder begun with others.
    """
    world = World(device)
    given: dict[str, Any] = {"steps": steps, "arm": arm, "corpus": corpus, "initial_scales": initial_scales}
    run = prepare(preset, widths, seed, out, **given, **changes)
    with checkpoint.held(run.folder), torch_threads(run.settings.threads), interrupts(stop) as interrupted:
        checkpoint.begin(run.folder, run.config())
        done = checkpoint.read_result(run.folder)
        if done is not None:
            return done
        if watch is not None:
            return Trainer(run, save_seconds, world).finish(watch, interrupted)
        with Progress(run.settings.steps, f"train {run.arm} seed {run.seed}") as bar:
            trainer = Trainer(run, save_seconds, world)
            bar.resume_at(trainer.step)
            return trainer.finish(lambda _, loss, speed: bar.step(text=describe(loss, speed)), interrupted)


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
