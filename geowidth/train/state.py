"""States of a training: everything needed to go on with the same bits. Nothing in them is unpickled.

    states/step-00000120/tensors.safetensors    weights, moments of the optimisers, random generators
    states/step-00000120/state.json             kind "geowidth.training_state": step, tokens, seconds, best loss, and
                                                the size and sha256 of every file beside it

The place in the learning rate's schedule and in the data is a function of the step alone. A state is written into a
folder aside, brought to the disk, and renamed: it is there whole or not at all. One that was damaged later does not
have the sizes and hashes that it says, and the one before it is taken. The last few are kept (`keep`).

Where the processes of a training hold parts of the model, every one writes its own (geowidth.train.shards) in place of
tensors.safetensors. Any number of processes, sharded or not, goes on from either.

Folders of 0.2.0 hold one state.safetensors in place of `states`; they go on from it.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, NUMBER, TEXT, Each
from geowidth.progress import tell
from geowidth.tensors import read_tensors, write_tensors
from geowidth.train.optimise import Optimizers
from geowidth.train.shards import read_parts, write_parts
from geowidth.train.state_tensors import (
    GENERATORS,
    check_generators,
    check_numbers,
    check_tensors,
    put_tensors,
    tensors_of,
    wanted_of,
)
from geowidth.train.world import World

STATES, TENSORS, RECORD, OLD_STATE = "states", "tensors.safetensors", "state.json", "state.safetensors"
KIND, SCHEMA = "geowidth.training_state", 1
PROGRESS = {"step": COUNT, "tokens": COUNT, "seconds": FINITE, "best": NUMBER}
FILES = Each({"bytes": COUNT, "sha256": TEXT})
DIVERGED = "lower the learning rate"  # the advice in every error of a training that diverged


def save_state(
    folder: Path,
    model: torch.nn.Module,
    optimizers: Optimizers,
    progress: dict[str, Any],
    keep: int = 1,
    world: World | None = None,
) -> None:
    """Write a state into `folder` and drop all but the last `keep`.

    progress: JSON values that go along (step, tokens, seconds, best loss). A state with a number that is not finite is
    refused: the model has diverged, and the states before it stay.
    """
    world = world or World()
    world.settle(model)
    tensors = tensors_of(model, optimizers)
    world.together(lambda: check_numbers(f"the state of step {progress['step']}", tensors, DIVERGED))
    if world.sharded:
        save_parts(folder, tensors, progress, world)
    else:
        world.together(lambda: save_whole(folder, tensors, progress) if world.is_first else None)
    world.together(lambda: drop_all_but(folder, keep) if world.is_first else None)


def save_whole(folder: Path, tensors: Mapping[str, torch.Tensor], progress: dict[str, Any]) -> None:
    """Write a state of whole tensors."""
    with new_state(folder, progress) as aside:
        write_tensors(aside / TENSORS, tensors)


def save_parts(folder: Path, tensors: Mapping[str, torch.Tensor], progress: dict[str, Any], world: World) -> None:
    """Write a state of which every process of `world` holds a part; the first makes it a state."""
    with contextlib.ExitStack() as stack:
        aside = world.of_first(lambda: stack.enter_context(new_state(folder, progress)))
        world.together(lambda: write_parts(aside, tensors))
        world.together(stack.pop_all().close)


@contextlib.contextmanager
def new_state(folder: Path, progress: dict[str, Any]) -> Iterator[Path]:
    """An empty folder to be filled, which becomes the state of progress["step"] when the block ends well.

    Raises UserError where it cannot be written; then, and when the block raises, the older states stay as they are.
    """
    path = Path(folder) / STATES / f"step-{progress['step']:08d}"
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.mkdir(parents=True)
        with files.holding(aside):
            yield aside
            written = {one.name: fingerprint(one) for one in sorted(aside.iterdir())}
            facts = {"kind": KIND, "schema": SCHEMA, **progress, "files": written}
            records.write_json(aside / RECORD, facts | {"environment": records.environment()})
            shutil.rmtree(path, ignore_errors=True)  # a damaged one of this step
            os.replace(aside, path)
        _to_disk(path.parent)
    except OSError as error:
        raise files.refusal(path, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def fingerprint(path: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _to_disk(folder):
    """Bring the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def saved_states(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the states in `folder`, the newest first; whether they are whole is not looked at."""
    with contextlib.suppress(OSError):
        found = [(re.fullmatch(r"step-(\d{1,18})", one.name), one) for one in (Path(folder) / STATES).iterdir()]
        steps = [(int(match[1]), one) for match, one in found if match and (one / RECORD).exists()]
        return sorted(steps, reverse=True)
    return []


def drop_all_but(folder: Path, keep: int) -> None:
    """Remove all states but the last `keep`, what killed processes left of others, and the file of 0.2.0."""
    kept = {path for _, path in saved_states(folder)[:keep]}
    (Path(folder) / OLD_STATE).unlink(missing_ok=True)
    for path in list((Path(folder) / STATES).iterdir()) if (Path(folder) / STATES).is_dir() else []:
        if path.name.startswith("."):
            files.sweep(path.with_name(path.name[1:].split(".")[0]))
        elif path not in kept:
            (path / RECORD).unlink(missing_ok=True)  # first: what is left is no state, wherever this stops
            shutil.rmtree(path, ignore_errors=True)


def drop_states(folder: Path) -> None:
    """Remove all states: the training is finished."""
    drop_all_but(folder, 0)
    shutil.rmtree(Path(folder) / STATES, ignore_errors=True)


def load_state(
    folder: Path,
    model: torch.nn.Module,
    optimizers: Optimizers,
    steps: int,
    step_tokens: int,
    world: World | None = None,
) -> dict[str, Any] | None:
    """Put the newest whole state in `folder` into `model` and `optimizers`; returns its progress, None without states.

    steps: of the whole training. step_tokens: tokens of one step. A state that is damaged or of another model is
    passed over with a line on standard error; UserError when there is none but such.
    """
    world, wrong = world or World(), None
    for path in world.of_first(lambda: candidates(folder)):
        words: str | None = None
        try:
            # One process reads all bytes, to compare their hash; each reads what it is to hold.
            tensors, progress = read_state(path, wanted_of(model, optimizers), world)
            check_progress(path, progress, steps, step_tokens)
            check_numbers(str(path), tensors, "it is no whole state")
            check_generators(path, tensors, model)
        except UserError as error:
            words = str(error)
        wrong = next(filter(None, world.gather(words)), None)
        if wrong is None:
            put_tensors(tensors, model, optimizers, progress["step"])
            return progress
        if world.is_first:
            tell(f"warning: {wrong}; looking for the state before it")
    if wrong is not None:
        raise UserError(f"{wrong}; no whole state is left: {to_begin_again(folder)}")
    return None


def candidates(folder: Path) -> list[Path]:
    """The states to go on from in `folder`, the newest first."""
    old = Path(folder) / OLD_STATE
    return [path for _, path in saved_states(folder)] + ([old] if files.exists(old) else [])


def to_begin_again(folder: Path) -> str:
    """What to do when no state can be gone on from."""
    name = STATES if saved_states(folder) else OLD_STATE
    return f"delete {Path(folder) / name} to begin again"


def read_state(
    path: Path, wanted: Mapping[str, torch.Tensor] | None = None, world: World | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors, progress) of a state; UserError if damaged, or if its tensors are not those `wanted` (None: any).

    The first process compares the files with what the state says of them. Tensors are whole, or sharded like `wanted`.
    """
    world = world or World()
    if path.name == OLD_STATE:
        tensors, metadata = read_tensors(path)
        check_tensors(path, tensors, wanted)
        return tensors, _old_progress(path, metadata)
    record = records.read_json(path / RECORD, KIND, SCHEMA)
    forms.check(path / RECORD, record, {**PROGRESS, "files": FILES}, "it is no whole state")
    if world.is_first:
        check_files(path, record["files"])
    progress = {name: record[name] for name in PROGRESS}
    if wanted is not None and (world.sharded or TENSORS not in record["files"]):
        return read_parts(path, wanted, also=GENERATORS), progress
    tensors, _ = read_tensors(path / TENSORS)
    check_tensors(path, tensors, wanted)
    return tensors, progress


def check_files(path: Path, wanted: dict[str, Any]) -> None:
    """Refuse a state one of whose files is missing, or not of the size and hash that the state says."""
    for name, facts in wanted.items():
        if Path(name).name != name or not files.exists(path / name):
            raise UserError(f"{path} lacks its file {name}: it is no whole state")
        size = os.path.getsize(path / name)
        if size != facts["bytes"]:
            raise UserError(f"{path / name} is damaged: it has {size:,} bytes of {facts['bytes']:,}")
        if fingerprint(path / name) != facts:
            raise UserError(f"{path / name} is damaged: its bytes are not those that were written")


def _old_progress(path, metadata):
    """The progress that the metadata of a 0.2.0 state tells."""
    try:
        progress = records.loads(metadata["progress"])
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged: it tells no progress ({error})") from error
    forms.check(path, progress, PROGRESS, "it is no whole state")
    return progress


def check_progress(path: Path, progress: dict[str, Any], steps: int, step_tokens: int) -> None:
    """Refuse a state whose step is not one between the first and the last, or whose count of tokens is not its own."""
    step, tokens = progress["step"], progress["tokens"]
    if not 0 < step < steps or tokens != step * step_tokens:
        raise UserError(f"{path} says step {step} of {steps} and {tokens} tokens, at {step_tokens} a step")


def saved_step(folder: Path) -> int:
    """Steps done in `folder` as of its newest state, without reading tensors; 0 if there is none."""
    for step, path in saved_states(folder):
        with contextlib.suppress(UserError):  # said by load_state, to whom it matters
            records.read_json(path / RECORD, KIND, SCHEMA)
            return step
    return _old_step(Path(folder) / OLD_STATE)


def _old_step(path):
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return _old_progress(path, file.metadata() or {})["step"]
    except (OSError, SafetensorError, UserError):
        return 0
