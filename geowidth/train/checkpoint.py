"""What a training folder holds while and after it is written.

    config.json         everything that decides the result (kind "geowidth.training"), written first
    metrics.jsonl       one object a line: step, split, loss, tokens, seconds; of training steps also learning_rate,
                        gradient_norm, tokens_per_second, where the device's peak is known, mfu, of those with
                        a gradient ledger block_gradient_norms, and of those with early exits or layer dropout
                        objective, the weighted loss that is minimised (loss is that of the last exit)
    states/             the last states, enough to go on (geowidth.train.state); gone once the run is finished
    model.safetensors, model.json
    result.json         kind "geowidth.training_result", written last: its presence marks a finished run

A folder is held by one process at a time. Metrics lines younger than the state that a run goes on from are dropped.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, OBJECT, TEXT
from geowidth.models.storage import CONFIG_FILE as MODEL_FILE
from geowidth.models.storage import TENSOR_FILE
from geowidth.models.training import with_defaults

CONFIG_FILE, METRICS_FILE, RESULT_FILE = "config.json", "metrics.jsonl", "result.json"
CONFIG_KIND, RESULT_KIND, SCHEMA = "geowidth.training", "geowidth.training_result", 1
# Settings that decide the bits of a result; a folder begun with others is not continued.
DECISIVE = ("arm", "model", "initial_scales", "training", "seed", "corpus")
WAIT_FOR_HOLDER = 20.0


# What later stages read of a result.
RESULT = {
    "arm": TEXT, "seed": COUNT, "widths": [COUNT], "loss": FINITE, "best_loss": FINITE, "bits_per_byte?": FINITE,
    "parameters": COUNT, "steps": COUNT, "tokens": COUNT, "flops": FINITE, "seconds": FINITE,
    "evaluation_tokens": COUNT, "preset": TEXT, "corpus": {"digest": TEXT}, "model": OBJECT, "training": OBJECT,
}  # fmt: skip
CONFIG = {"arm": TEXT, "seed": COUNT, "model": OBJECT, "training": OBJECT, "corpus": OBJECT}
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
    for name in (CONFIG_FILE, METRICS_FILE, RESULT_FILE, MODEL_FILE, TENSOR_FILE):
        files.sweep(Path(folder) / name)
    if not files.exists(path):
        records.write_json(path, config)
        return
    old, new = records.read_json(path, CONFIG_KIND, SCHEMA), records.loads(records.dumps(config))
    forms.check(path, old, CONFIG, AGAIN)
    for section in DECISIVE:
        if section == "corpus":
            changes = difference("corpus digest", old["corpus"].get("digest"), new["corpus"]["digest"])
        elif section == "training":
            changes = difference(section, *(bits_of(one[section]) for one in (old, new)))
        else:
            changes = difference(section, old.get(section), new.get(section))
        if changes:
            raise UserError(
                f"{folder} was begun with {changes}; choose another folder or the settings of the first time"
            )


def bits_of(training: dict[str, Any]) -> dict[str, Any]:
    """The JSON of training settings, defaults filled in, without those that no bit of a result depends on."""
    return {name: value for name, value in with_defaults(training).items() if name != "keep"}


def check_seen(folder: Path) -> None:
    """Refuse, in another process than the one that began it, a folder that this process does not see."""
    if not files.exists(Path(folder) / CONFIG_FILE):
        raise UserError(f"the first process began {folder}, which another does not see; name a folder on a shared disk")


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
