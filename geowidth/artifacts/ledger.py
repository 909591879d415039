"""Ledger: the gradient norms of every residual block, summed over a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from geowidth import forms, records
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, whole
from geowidth.files import PathLike
from geowidth.forms import COUNT, NUMBER, OBJECT, TEXT

KIND, SCHEMA = "geowidth.ledger", 1
AGAIN = "train again with a ledger"
RECORD = {"blocks": [TEXT], "steps": COUNT, "skipped": COUNT, "norms": [NUMBER], "step_shares": [NUMBER]}
RECORD |= {"settings": OBJECT}


@dataclass(frozen=True)
class Ledger:
    """Sums over the steps of a training, one number a block, first block first; float64 (blocks,).

    blocks        paths of the blocks in their model
    steps         steps that are in the sums
    skipped       steps whose gradients were not finite, which are in none
    norms         sum over steps of the L2 norm of the block's gradient, loss scale and accumulation removed
    step_shares   sum over steps of the block's share of that step's norms
    settings      what it was recorded in
    """

    blocks: tuple[str, ...]
    steps: int
    skipped: int
    norms: np.ndarray
    step_shares: np.ndarray
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for name in ("norms", "step_shares"):
            object.__setattr__(self, name, per_layer(f"{name} of a ledger", getattr(self, name), len(self.blocks)))
        for name in ("steps", "skipped"):
            object.__setattr__(self, name, whole(f"{name} of a ledger", getattr(self, name), 0))

    @property
    def shares(self) -> np.ndarray:
        """Accumulated gradient shares, float64 (blocks,): norms divided by their sum over blocks.

        Raises UserError where no step left a gradient.
        """
        total = self.norms.sum()
        if not total > 0:
            raise UserError(f"the ledger of {self.steps} steps holds no gradient; {AGAIN}")
        return self.norms / total

    @property
    def mean_step_shares(self) -> np.ndarray:
        """Mean over steps of each block's share of that step's norms: every step counts alike, however large."""
        if not self.steps:
            raise UserError(f"the ledger holds no step; {AGAIN}")
        return self.step_shares / self.steps

    def to_json(self) -> dict[str, Any]:
        """The ledger as a dict for ledger.json; the shares stand in it for readers."""
        value: dict[str, Any] = {"kind": KIND, "schema": SCHEMA, "blocks": list(self.blocks)}
        value |= {"steps": self.steps, "skipped": self.skipped}
        value |= {"norms": self.norms.tolist(), "step_shares": self.step_shares.tolist()}
        return value | {"shares": self.shares.tolist() if self.norms.sum() > 0 else None, "settings": self.settings}

    def write(self, path: PathLike) -> None:
        """Write ledger.json, whole or not at all."""
        records.write_json(path, self.to_json())

    @classmethod
    def read(cls, path: PathLike) -> Ledger:
        """The Ledger in a file; a damaged one, or one of another kind, raises UserError."""
        value = records.read_json(path, KIND, SCHEMA)
        forms.check(path, value, RECORD, AGAIN)
        try:
            return cls(**{name: value[name] for name in RECORD})
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
