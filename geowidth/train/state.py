"""States of a training: enough to go on from, with the same bits."""

from pathlib import Path
from typing import Any

import torch

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, NUMBER
from geowidth.models.storage import check_names_and_shapes, is_finite
from geowidth.tensors import read_tensors, write_tensors
from geowidth.train.checkpoint import STATE_FILE

MOMENTS = ("exp_avg", "exp_avg_sq")
TO_BEGIN_AGAIN = f"delete {STATE_FILE} to begin again"
PROGRESS = {"step": COUNT, "tokens": COUNT, "seconds": FINITE, "best": NUMBER}


def save_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Write the resumable state. progress: JSON values that go along (step, tokens, seconds, best loss)."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter/{name}"] = parameter
        for moment in MOMENTS:
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment]
    write_tensors(Path(folder) / STATE_FILE, tensors, {"progress": records.dumps(progress)})


def load_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Put the state in `folder` into `model` and `optimizer`; returns its progress, or None if there is no state.

    A state that is damaged, or of another model, raises UserError.
    """
    path = Path(folder) / STATE_FILE
    if not files.exists(path):
        return None
    tensors, metadata = read_tensors(path)
    parameters = dict(model.named_parameters())
    wanted = {f"{part}/{n}": tuple(p.shape) for n, p in parameters.items() for part in ("parameter", *MOMENTS)}
    progress = _progress(path, metadata)
    try:
        check_names_and_shapes(path, tensors, wanted, "the model under training")
        for name, tensor in tensors.items():
            least = tensor.min() if name.startswith("exp_avg_sq/") and tensor.numel() else 0
            if tensor.dtype != torch.float32 or not is_finite(tensor) or least < 0:
                raise UserError(f"{path}: tensor {name} is {tensor.dtype} or holds numbers that training cannot reach")
    except UserError as error:
        raise UserError(f"{error}; {TO_BEGIN_AGAIN}") from error
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[f"parameter/{name}"])
        state = optimizer.state[parameter]
        state |= {moment: tensors[f"{moment}/{name}"] for moment in MOMENTS}
        state["step"] = torch.tensor(float(progress["step"]))
    return progress


def _progress(path, metadata):
    """The progress that the metadata of a state file tells."""
    try:
        progress = records.loads(metadata["progress"])
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged: it tells no progress ({error}); {TO_BEGIN_AGAIN}") from error
    forms.check(path, progress, PROGRESS, TO_BEGIN_AGAIN)
    return progress


def check_progress(folder: Path, progress: dict[str, Any], steps: int, step_tokens: int) -> None:
    """Refuse a state whose step is not one between the first and the last, or whose count of tokens is not its own."""
    step, tokens = progress["step"], progress["tokens"]
    if not 0 < step < steps or tokens != step * step_tokens:
        raise UserError(
            f"{Path(folder) / STATE_FILE} says step {step} of {steps} and {tokens} tokens, at {step_tokens} a step; "
            f"{TO_BEGIN_AGAIN}"
        )


def saved_step(folder: Path) -> int:
    """Steps done in `folder` as of its last state, without reading tensors; 0 if there is none."""
    from safetensors import SafetensorError, safe_open

    path = Path(folder) / STATE_FILE
    try:
        with safe_open(path, "pt") as file:
            return _progress(path, file.metadata() or {})["step"]
    except (OSError, SafetensorError, UserError):  # said by load_state, to whom it matters
        return 0
