"""The gradient ledger of our own training loop, kept in its metrics.

    train("nano", out="runs/nano", look=block_norms)
    write_ledger("runs/nano")

Every step's norms stand in that step's line of metrics.jsonl, and the ledger is their sum. So it is as safe as the
metrics are: lines younger than the state that a run goes on from are dropped, and an interrupted training ends with the
ledger of an uninterrupted one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import files, forms, records
from geowidth.artifacts.ledger import Ledger
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.forms import NUMBER
from geowidth.train.checkpoint import METRICS_FILE

NORMS, LEDGER_FILE = "block_gradient_norms", "ledger.json"


def block_norms(model: torch.nn.Module) -> Callable[[torch.Tensor], dict[str, Any]]:
    """What `train` looks with (its argument `look`) for a ledger: every step's gradient norms of the model's blocks.

    They are measured once a step, for this and for the clipping: a ledger costs hardly more than a longer line.
    """
    return lambda norms: {NORMS: norms.tolist()}


def check_ledger(folder: PathLike) -> None:
    """Raise a UserError where a training in `folder` was begun, or finished, without a ledger."""
    if files.exists(Path(folder) / METRICS_FILE):
        _norms(folder)


def write_ledger(folder: PathLike) -> Ledger:
    """Write ledger.json of the training in `folder`, from its metrics, and return the Ledger.

    Raises UserError where it was trained without one, and for damaged metrics.
    """
    steps = _norms(folder)
    if not steps:
        raise UserError(f"{Path(folder) / METRICS_FILE} holds no step; train in the folder first")
    rows = np.array(steps, dtype=np.float64)
    finite = rows[np.isfinite(rows).all(1)]
    totals = finite.sum(1, keepdims=True)
    shares = np.divide(finite, totals, out=np.zeros_like(finite), where=totals > 0)
    names = tuple(f"blocks.{block}" for block in range(rows.shape[1]))
    sums = (_summed(finite), _summed(shares))
    ledger = Ledger(names, len(finite), len(rows) - len(finite), *sums, settings={"source": METRICS_FILE})
    ledger.write(Path(folder) / LEDGER_FILE)
    return ledger


def _summed(rows):
    """Sums over steps, one step after the other."""
    return np.add.accumulate(np.vstack([np.zeros((1, rows.shape[1])), rows]))[-1]


def _norms(folder):
    """[norms of every block] of every training step in the metrics of a folder."""
    path = Path(folder) / METRICS_FILE
    found: list[list[float]] = []
    for number, line in enumerate(records.read_json_lines(path), 1):
        if not isinstance(line, dict) or line.get("split") != "train":
            continue
        if NORMS not in line:
            raise UserError(f"{folder} was begun without a ledger (--ledger); train in another folder")
        wrong = forms.fault(line[NORMS], [NUMBER], NORMS)
        if wrong or not line[NORMS] or len(line[NORMS]) != len(found[0] if found else line[NORMS]):
            raise UserError(f"{path} line {number} is damaged: {wrong or 'a block is missing'}; train again")
        found.append(line[NORMS])
    return found
