"""How one model is trained: the settings that every arm of a comparison shares."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from geowidth.errors import MOST, UserError, choose, flag, whole

MOST_THREADS = 1024  # torch ends the process, without a word, when it cannot start as many as it was told to
OPTIMIZERS, DECAYS = ("adamw", "muon", "sgd"), ("cosine", "wsd")
DTYPES, RECOMPUTE = ("float32", "bfloat16"), ("none", "ffn", "block")
EXIT_WEIGHTS, EXIT_CURRICULA = ("layerskip", "equal"), ("none", "rotational", "gradual")
DROPOUT_CURRICULA = ("none", "exponential")


@dataclass(frozen=True)
class TrainingSettings:
    """How one model is trained. The seed, the widths, the corpus and the device are not part of it.

    steps: optimiser steps. batch: sequences of one context length a step. microbatch: sequences in memory at once (the
    gradient is that of the whole batch). learning_rate: peak; it rises linearly over the first `warmup` share of the
    steps. decay: how it falls to `final_rate` of the peak: "cosine" along half a cosine over all other steps; "wsd"
    (warm-up, stable, decay) stays at the peak and falls linearly over the last `decay_share` of the steps.

    optimizer: "adamw", "muon" (torch.optim.Muon for the matrices inside the blocks, AdamW for all else, one rate for
    both), or "sgd" (with momentum; its rates are larger than AdamW's). weight_decay (decoupled, on matrices only) of
    all; beta1, beta2, epsilon: AdamW; momentum: Muon, SGD. clip: largest gradient norm.

    dtype: of the matrix products ("float32", "bfloat16"); weights, gradients, moments, norms and losses are float32
    either way. recompute: what backward computes again instead of keeping ("none", "ffn", "block"). compile: whether
    torch.compile makes kernels of the blocks. document_mask: whether attention stops at the border of a document.

    evaluations: validation losses over the run, evenly spread, the last one after the last step. evaluation_windows:
    sequences of the fixed validation set. threads: torch threads; with another number the sums are ordered differently
    and the bits differ. keep: how many of the last states stay in the folder while it is trained.
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
    optimizer: str = "adamw"
    momentum: float = 0.95
    decay: str = "cosine"
    decay_share: float = 0.2
    dtype: str = "float32"
    recompute: str = "none"
    compile: bool = False
    document_mask: bool = False
    keep: int = 2
    equal_gradients: bool = False
    exit_loss: float = 0.0
    exit_weights: str = "layerskip"
    exit_curriculum: str = "none"
    exit_period: int = 4
    layer_dropout: float = 0.0
    layer_dropout_curriculum: str = "none"

    def __post_init__(self):
        for name in _COUNTS:
            most = MOST_THREADS if name == "threads" else MOST
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, most))
        for name in _NUMBERS:
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        for name, allowed in _WORDS.items():
            choose(name, getattr(self, name), allowed)
        for name in ("compile", "document_mask", "equal_gradients"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        if self.decay == "wsd" and self.warmup + self.decay_share > 1:
            raise UserError(
                f"warmup {self.warmup:g} and decay_share {self.decay_share:g} exceed all steps; lower one of them"
            )
        for name, of in _PARTS.items():
            if getattr(self, name) != _WORDS[name][0] and not getattr(self, of):
                raise UserError(f"{name} is {getattr(self, name)!r}, but {of} is 0; give {of} a value above 0 too")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TrainingSettings:
        """The settings that `to_json` gave; those that files of older versions lack get their defaults.

        Unknown fields raise a UserError.
        """
        for name in value:
            choose("training setting", name, [f.name for f in fields(cls)])
        return cls(**value)


def with_defaults(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON of settings, those that files of older versions lack filled in with what they meant there."""
    return {f.name: f.default for f in fields(TrainingSettings) if f.default is not MISSING} | value


_COUNTS = ("steps", "batch", "microbatch", "evaluations", "evaluation_windows", "threads", "keep", "exit_period")
_NUMBERS = (
    "learning_rate", "warmup", "final_rate", "weight_decay", "beta1", "beta2", "epsilon", "clip", "momentum",
    "decay_share", "exit_loss", "layer_dropout",
)  # fmt: skip
_ABOVE_0 = {"learning_rate", "epsilon", "clip", "decay_share"}
_BELOW_1 = {"beta1", "beta2", "momentum", "layer_dropout"}
_UP_TO_1 = {"warmup", "final_rate", "decay_share"}
_WORDS = {"optimizer": OPTIMIZERS, "decay": DECAYS, "dtype": DTYPES, "recompute": RECOMPUTE}
_WORDS |= {"exit_weights": EXIT_WEIGHTS, "exit_curriculum": EXIT_CURRICULA}
_WORDS |= {"layer_dropout_curriculum": DROPOUT_CURRICULA}
# Settings that say something about another one, which must not be 0 then.
_PARTS = {"exit_weights": "exit_loss", "exit_curriculum": "exit_loss", "layer_dropout_curriculum": "layer_dropout"}


def _checked(name, value):
    """The number of a setting as a float; UserError for what it may not be."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UserError(f"{name} is {value!r}; allowed: numbers from 0 up")
    if name in _ABOVE_0 and value == 0:
        raise UserError(f"{name} is {value!r}; allowed: positive numbers")
    if (name in _BELOW_1 and value >= 1) or (name in _UP_TO_1 and value > 1):
        raise UserError(f"{name} is {value!r}; allowed: numbers from 0 to 1")
    return float(value)
