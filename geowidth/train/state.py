"""States of a training: everything needed to go on with the same bits. Nothing in them is unpickled.

    states/step-00000120/tensors.safetensors    weights, moments of the optimisers, random generators
    states/step-00000120/state.json             kind "geowidth.training_state": step, tokens, seconds, best loss, and
                                                the size and sha256 of every file beside it

The place in the learning rate's schedule and in the data is a function of the step alone. A state is written into a
folder aside, brought to the disk, and renamed: it is there whole or not at all. One that was damaged later does not
have the sizes and hashes that it says, and the one before it is taken. The last few are kept (`keep`).

Folders of 0.2.0 hold one state.safetensors in place of `states`; they go on from it.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, NUMBER, TEXT, Each
from geowidth.models.storage import check_names_and_shapes, is_finite
from geowidth.progress import tell
from geowidth.tensors import read_tensors, write_tensors
from geowidth.train.optimise import Optimizers

STATES, TENSORS, RECORD, OLD_STATE = "states", "tensors.safetensors", "state.json", "state.safetensors"
KIND, SCHEMA = "geowidth.training_state", 1
PROGRESS = {"step": COUNT, "tokens": COUNT, "seconds": FINITE, "best": NUMBER}
FILES = Each({"bytes": COUNT, "sha256": TEXT})
GENERATORS = ("generator/cpu", "generator/cuda")
# What an optimiser keeps for every parameter, by the name of its class.
MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}


def save_state(
    folder: Path, model: torch.nn.Module, optimizers: Optimizers, progress: dict[str, Any], keep: int = 1
) -> None:
    """Write a state into `folder` and drop all but the last `keep`.

    progress: JSON values that go along (step, tokens, seconds, best loss). A state with a number that is not finite is
    refused: the model has diverged, and the states before it stay.
    """
    tensors = tensors_of(model, optimizers)
    bad = next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)
    if bad is not None:
        raise UserError(f"{bad} is no longer finite at step {progress['step']}; lower the learning rate")
    with new_state(folder, progress) as aside:
        write_tensors(aside / TENSORS, tensors)
    drop_all_but(folder, keep)


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
    folder: Path, model: torch.nn.Module, optimizers: Optimizers, steps: int, step_tokens: int
) -> dict[str, Any] | None:
    """Put the newest whole state in `folder` into `model` and `optimizers`; returns its progress, None without states.

    steps: of the whole training. step_tokens: tokens of one step. A state that is damaged or of another model is
    passed over with a line on standard error; UserError when there is none but such.
    """
    wrong: UserError | None = None
    for path in [path for _, path in saved_states(folder)] + [Path(folder) / OLD_STATE]:
        if path.name == OLD_STATE and not files.exists(path):
            continue
        try:
            tensors, progress = read_state(path)
            check_progress(path, progress, steps, step_tokens)
            check_tensors(path, tensors, model, optimizers)
        except UserError as error:
            tell(f"warning: {error}; looking for the state before it")
            wrong = error
            continue
        put_tensors(tensors, model, optimizers, progress["step"])
        return progress
    if wrong is not None:
        raise UserError(f"{wrong}; no whole state is left: {to_begin_again(folder)}")
    return None


def to_begin_again(folder: Path) -> str:
    """What to do when no state can be gone on from."""
    name = STATES if saved_states(folder) else OLD_STATE
    return f"delete {Path(folder) / name} to begin again"


def read_state(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors, progress) of a state, its files compared with what the state says of them; UserError if damaged."""
    if path.name == OLD_STATE:
        tensors, metadata = read_tensors(path)
        return tensors, _old_progress(path, metadata)
    record = records.read_json(path / RECORD, KIND, SCHEMA)
    forms.check(path / RECORD, record, {**PROGRESS, "files": FILES}, "it is no whole state")
    check_files(path, record["files"])
    return read_tensors(path / TENSORS)[0], {name: record[name] for name in PROGRESS}


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


def tensors_of(model: torch.nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """Everything that a state holds, by name: parameter/NAME, MOMENT/NAME, generator/DEVICE."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter/{name}"] = parameter
        for moment in moments_of(optimizers, parameter):
            if moment in (kept := optimizers.part_of(parameter).state[parameter]):
                tensors[f"{moment}/{name}"] = kept[moment]
    tensors["generator/cpu"] = torch.get_rng_state()
    if (device := next(model.parameters()).device).type == "cuda":
        tensors["generator/cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def moments_of(optimizers: Optimizers, parameter: torch.nn.Parameter) -> tuple[str, ...]:
    """The names of what the optimiser of `parameter` keeps for it."""
    return MOMENTS[type(optimizers.part_of(parameter)).__name__]


def check_tensors(path: Path, tensors: dict[str, torch.Tensor], model: torch.nn.Module, optimizers: Optimizers) -> None:
    """Refuse tensors that are not those of this model and these optimisers, or hold what training cannot reach."""
    wanted = {}
    for name, parameter in model.named_parameters():
        for part in ("parameter", *moments_of(optimizers, parameter)):
            wanted[f"{part}/{name}"] = tuple(parameter.shape)
    own = {name: tensor for name, tensor in tensors.items() if name not in GENERATORS}
    check_names_and_shapes(path, own, wanted, "the model under training")
    for name in set(tensors) & set(GENERATORS):
        if tensors[name].dtype != torch.uint8 or tensors[name].ndim != 1:
            raise UserError(f"{path}: tensor {name} is no state of a random generator")
    for name, tensor in own.items():
        least = tensor.min() if name.startswith("exp_avg_sq/") and tensor.numel() else 0
        if tensor.dtype != torch.float32 or not is_finite(tensor) or least < 0:
            raise UserError(f"{path}: tensor {name} is {tensor.dtype} or holds numbers that training cannot reach")


def put_tensors(tensors: dict[str, torch.Tensor], model: torch.nn.Module, optimizers: Optimizers, step: int) -> None:
    """Copy checked tensors of a state into the model, the optimisers and torch's generators."""
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[f"parameter/{name}"])
        kept = optimizers.part_of(parameter).state[parameter]
        for moment in moments_of(optimizers, parameter):
            kept[moment] = tensors[f"{moment}/{name}"].to(parameter.device)
        if "exp_avg" in kept:
            kept["step"] = torch.tensor(float(step), device=parameter.device)
    if "generator/cpu" in tensors:
        torch.set_rng_state(tensors["generator/cpu"])
    device = next(model.parameters()).device
    if "generator/cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["generator/cuda"], device)
