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
from pathlib import Path

from geowidth import files, records
from geowidth.errors import UserError
from geowidth.models.storage import read_tensors, write_tensors

CONFIG_FILE, METRICS_FILE, STATE_FILE, RESULT_FILE = "config.json", "metrics.jsonl", "state.safetensors", "result.json"
CONFIG_KIND, RESULT_KIND, SCHEMA = "geowidth.training", "geowidth.training_result", 1
# Settings that decide the bits of a result; a folder begun with others is not continued.
DECISIVE = ("arm", "model", "training", "seed", "corpus")
WAIT_FOR_HOLDER = 20.0


def read_result(folder):
    """The finished result in `folder`, or None."""
    path = Path(folder) / RESULT_FILE
    return records.read_json(path, RESULT_KIND, SCHEMA) if path.is_file() else None


def begin(folder, config):
    """Write config.json, or check that the one there asks for the same run. Raises UserError naming what differs."""
    path = Path(folder) / CONFIG_FILE
    if not path.exists():
        records.write_json(path, config)
        return
    old, new = records.read_json(path, CONFIG_KIND, SCHEMA), records.loads(records.dumps(config))
    for section in DECISIVE:
        if section == "corpus":
            changes = difference("corpus digest", (old.get("corpus") or {}).get("digest"), new["corpus"]["digest"])
        else:
            changes = difference(section, old.get(section), new[section])
        if changes:
            raise UserError(
                f"{folder} was begun with {changes}; choose another folder or the settings of the first time"
            )


def difference(name, old, new):
    """'NAME OLD, not NEW' for the first difference of two JSON values, or ''."""
    if isinstance(old, dict) and isinstance(new, dict):
        return next((words for key in {**old, **new} if (words := difference(key, old.get(key), new.get(key)))), "")
    return "" if old == new else f"{name} {old}, not {new}"


@contextlib.contextmanager
def held(folder):
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


def save_state(folder, model, optimizer, progress):
    """Write the resumable state. progress: JSON values that go along (step, tokens, seconds, best loss)."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter/{name}"] = parameter
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment]
    write_tensors(Path(folder) / STATE_FILE, tensors, {"progress": records.dumps(progress)})


def load_state(folder, model, optimizer):
    """Put the state in `folder` into `model` and `optimizer`; returns its progress, or None if there is no state."""
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        return None
    tensors, metadata = read_tensors(path)
    try:
        progress = records.loads(metadata["progress"])
        for name, parameter in model.named_parameters():
            parameter.data.copy_(tensors[f"parameter/{name}"])
            state = optimizer.state[parameter]
            state["exp_avg"], state["exp_avg_sq"] = tensors[f"exp_avg/{name}"], tensors[f"exp_avg_sq/{name}"]
            state["step"] = tensors[f"exp_avg/{name}"].new_tensor(float(progress["step"]))
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} does not fit this model ({error}); delete it to begin again") from error
    return progress


def saved_step(folder):
    """Steps done in `folder` as of its last state, without reading tensors; 0 if there is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(Path(folder) / STATE_FILE, "pt") as file:
            return int(records.loads(file.metadata()["progress"])["step"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return 0


class Metrics:
    """metrics.jsonl, opened for appending after the lines of the first `step` steps."""

    def __init__(self, folder, step):
        self.path = Path(folder) / METRICS_FILE
        kept = [line for line in records.read_json_lines(self.path) if line["step"] <= step] if step else []
        records.write_text(self.path, "".join(records.dumps(line) + "\n" for line in kept))
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, **line):
        self.file.write(records.dumps(line) + "\n")
        self.file.flush()

    def sync(self):
        """Bring all lines to the disk: done before a state that stands for them is written."""
        os.fsync(self.file.fileno())

    def close(self):
        self.file.close()
