"""How one model is trained: the settings that every arm of a comparison shares."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from geowidth.errors import MOST, UserError, choose, whole

MOST_THREADS = 1024  # torch ends the process, without a word, when it cannot start as many as it was told to


@dataclass(frozen=True)
class TrainingSettings:
    """How one model is trained. The seed, the widths and the corpus are not part of it.

    steps: optimiser steps. batch: sequences of one context length a step. microbatch: sequences in memory at once (the
    gradient is that of the whole batch). learning_rate: peak; it rises linearly over the first `warmup` share of the
    steps, then falls along a cosine to `final_rate` of the peak. weight_decay (decoupled, on matrices only), beta1,
    beta2, epsilon: AdamW. clip: largest gradient norm. evaluations: validation losses over the run, evenly spread, the
    last one after the last step. evaluation_windows: sequences of the fixed validation set. threads: torch threads;
    with another number the sums are ordered differently and the bits differ.
    """

    steps: int
    batch: int
    microbatch: int
    learning_rate: float
    warmup: float = 0.1
    final_rate: float = 0.05
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip: float = 1.0
    evaluations: int = 5
    evaluation_windows: int = 256
    threads: int = 1

    def __post_init__(self):
        for name in ("steps", "batch", "microbatch", "evaluations", "evaluation_windows", "threads"):
            most = MOST_THREADS if name == "threads" else MOST
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, most))
        above, below = {"learning_rate", "epsilon", "clip"}, {"beta1", "beta2"}
        for name in ("learning_rate", "warmup", "final_rate", "weight_decay", "beta1", "beta2", "epsilon", "clip"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise UserError(f"{name} is {value!r}; allowed: numbers from 0 up")
            if name in above and value == 0:
                raise UserError(f"{name} is {value!r}; allowed: positive numbers")
            if (name in below and value >= 1) or (name in ("warmup", "final_rate") and value > 1):
                raise UserError(f"{name} is {value!r}; allowed: numbers from 0 to 1")
            object.__setattr__(self, name, float(value))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TrainingSettings:
        """The settings that `to_json` gave; unknown fields raise a UserError."""
        for name in value:
            choose("training setting", name, [f.name for f in fields(cls)])
        return cls(**value)
