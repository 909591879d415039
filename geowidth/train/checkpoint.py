"""What a training folder holds while and after it is written.

    config.json         everything that decides the result (kind "geowidth.training"), written first
    metrics.jsonl       one object a line: step, split, loss, tokens, seconds (and learning_rate of training steps)
    state.safetensors   parameters, AdamW moments, step: enough to go on; gone once the run is finished
    model.safetensors, model.json
    result.json         kind "geowidth.training_result", written last: its presence marks a finished run

A folder is held by one process at a time. A state is written aside and renamed, so a killed process leaves the last
whole one, and metrics lines younger than it are dropped when the run goes on.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, NUMBER, OBJECT, TEXT
from geowidth.models.storage import CONFIG_FILE as MODEL_FILE
from geowidth.models.storage import TENSOR_FILE, check_names_and_shapes, is_finite
from geowidth.tensors import read_tensors, write_tensors

CONFIG_FILE, METRICS_FILE, STATE_FILE, RESULT_FILE = "config.json", "metrics.jsonl", "state.safetensors", "result.json"
CONFIG_KIND, RESULT_KIND, SCHEMA = "geowidth.training", "geowidth.training_result", 1
# Settings that decide the bits of a result; a folder begun with others is not continued.
DECISIVE = ("arm", "model", "initial_scales", "training", "seed", "corpus")
MOMENTS = ("exp_avg", "exp_avg_sq")
TO_BEGIN_AGAIN = f"delete {STATE_FILE} to begin again"
WAIT_FOR_HOLDER = 20.0


# What later stages read of a result.
RESULT = {
    "arm": TEXT, "seed": COUNT, "widths": [COUNT], "loss": FINITE, "best_loss": FINITE, "bits_per_byte": FINITE,
    "parameters": COUNT, "steps": COUNT, "tokens": COUNT, "flops": FINITE, "seconds": FINITE,
    "evaluation_tokens": COUNT, "preset": TEXT, "corpus": {"digest": TEXT}, "model": OBJECT, "training": OBJECT,
}  # fmt: skip
CONFIG = {"arm": TEXT, "seed": COUNT, "model": OBJECT, "training": OBJECT, "corpus": OBJECT}
PROGRESS = {"step": COUNT, "tokens": COUNT, "seconds": FINITE, "best": NUMBER}
LINE = {"step": COUNT, "split": TEXT, "loss": NUMBER, "tokens": COUNT, "seconds": FINITE}
AGAIN = "delete the folder and train again"


def read_result(folder: Path) -> dict[str, Any] | None:
    """The finished result in `folder`, or None. A damaged one raises UserError."""
    path = Path(folder) / RESULT_FILE
    if not files.exists(path):
        return None
    result = records.read_json(path, RESULT_KIND, SCHEMA)
    forms.check(path, result, RESULT, AGAIN)
    return result


def begin(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json, or check that the one there asks for the same run. Raises UserError naming what differs."""
    path = Path(folder) / CONFIG_FILE
    for name in (CONFIG_FILE, METRICS_FILE, STATE_FILE, RESULT_FILE, MODEL_FILE, TENSOR_FILE):
        files.sweep(Path(folder) / name)
    if not files.exists(path):
        records.write_json(path, config)
        return
    old, new = records.read_json(path, CONFIG_KIND, SCHEMA), records.loads(records.dumps(config))
    forms.check(path, old, CONFIG, AGAIN)
    for section in DECISIVE:
        if section == "corpus":
            changes = difference("corpus digest", old["corpus"].get("digest"), new["corpus"]["digest"])
        else:
            changes = difference(section, old.get(section), new.get(section))
        if changes:
            raise UserError(
                f"{folder} was begun with {changes}; choose another folder or the settings of the first time"
            )


def difference(name: str, old: object, new: object) -> str:
    """'NAME OLD, not NEW' for the first difference of two JSON values, or ''."""
    if isinstance(old, dict) and isinstance(new, dict):
        return next((words for key in {**old, **new} if (words := difference(key, old.get(key), new.get(key)))), "")
    return "" if old == new else f"{name} {old}, not {new}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process. A holder that is just stopping is waited for; then a UserError is raised."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name a folder that can be written") from error
    with file:
        until = time.monotonic() + WAIT_FOR_HOLDER
        while not files.lock(file):
            if time.monotonic() > until:
                raise UserError(f"another process is training in {folder}; wait for it or choose another folder")
            time.sleep(0.1)
        yield


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


class Metrics:
    """metrics.jsonl, opened for appending after the lines of the first `step` steps.

    A full disk is a UserError at the line it cuts short; what is left can be read, and the run goes on from its state.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = Path(folder) / METRICS_FILE
        kept = [line for line in self._lines() if line["step"] <= step] if step else []
        records.write_text(self.path, "".join(records.dumps(line) + "\n" for line in kept))
        try:
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise files.refusal(self.path, error) from error

    def _lines(self):
        """The lines there, each checked, their steps never falling."""
        lines, last = records.read_json_lines(self.path), 0
        for number, line in enumerate(lines, 1):
            wrong = forms.fault(line, LINE)
            if not wrong and line["step"] < last:
                wrong = f"step {line['step']} comes after step {last}"
            if wrong:
                raise UserError(f"{self.path} line {number} is damaged: {wrong}; delete that line, or the folder")
            last = line["step"]
        return lines

    def write(self, **line: Any) -> None:
        data = (records.dumps(line) + "\n").encode("utf-8")
        try:
            while data:
                data = data[self.file.write(data) :]
        except OSError as error:
            raise files.refusal(self.path, error, len(data)) from error

    def sync(self) -> None:
        """Bring all lines to the disk: done before a state that stands for them is written."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise files.refusal(self.path, error) from error

    def close(self) -> None:
        self.file.close()
