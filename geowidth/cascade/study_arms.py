"""The arms of a cascade study: plain trainings, and interventions in how gradients reach the blocks.

    NAME                       an arm of ARMS: adamw, equal-sgd, repeat, ...
    NAME:OPTION=VALUE,...      the same with other settings, as in repeat:repeat_last=3,repeat_times=2

Every arm is held against the plain arm of its optimiser: rates are not tuned arm by arm, and an optimiser's rate is
none of another's.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from geowidth.allocate.arms import MOST_LETTERS, read_options
from geowidth.errors import UserError, choose, shown
from geowidth.models.config import ModelConfig
from geowidth.models.training import TrainingSettings
from geowidth.registry import Registry

OF_MODEL = ("repeat_last", "repeat_times")
OF_TRAINING = (
    "learning_rate", "momentum", "equal_gradients", "exit_loss", "exit_weights", "exit_curriculum", "exit_period",
    "layer_dropout", "layer_dropout_curriculum",
)  # fmt: skip
PLAIN = ("adamw", "sgd")  # arms that others are held against, by the names of their optimisers


@dataclass(frozen=True)
class StudyArm:
    """A kind of training. sentence: what it does. changes: settings of OF_MODEL and OF_TRAINING, and the optimizer, one
    of PLAIN."""

    name: str
    sentence: str
    changes: dict[str, Any] = field(default_factory=dict)


ARMS = Registry(
    "arm of a cascade study",
    StudyArm,
    (
        StudyArm("adamw", "nothing changed, AdamW", {"optimizer": "adamw"}),
        StudyArm(
            "equal-adamw",
            "gradients of all blocks scaled to one norm, AdamW",
            {"optimizer": "adamw", "equal_gradients": True},
        ),
        StudyArm(
            "repeat",
            "the last two blocks applied three times",
            {"optimizer": "adamw", "repeat_last": 2, "repeat_times": 3},
        ),
        StudyArm(
            "exits-equal",
            "a loss after every block, of equal weight",
            {"optimizer": "adamw", "exit_loss": 1.0, "exit_weights": "equal"},
        ),
        StudyArm(
            "exits-layerskip",
            "a loss after every block, in LayerSkip's weights",
            {"optimizer": "adamw", "exit_loss": 1.0, "exit_weights": "layerskip"},
        ),
        StudyArm(
            "dropout",
            "LayerSkip's losses and layer dropout",
            {"optimizer": "adamw", "exit_loss": 1.0, "exit_weights": "layerskip", "layer_dropout": 0.2},
        ),
        StudyArm("sgd", "nothing changed, SGD with momentum", {"optimizer": "sgd"}),
        StudyArm(
            "equal-sgd",
            "gradients of all blocks scaled to one norm, SGD",
            {"optimizer": "sgd", "equal_gradients": True},
        ),
    ),
)
"""All arms by name; a module outside the package adds its own with `ARMS.register(StudyArm(...))`."""


@dataclass(frozen=True)
class ChosenArm:
    """An arm as it was asked for. text: the words. changes: the arm's own, then those of its options."""

    text: str
    sentence: str
    changes: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> "ChosenArm":
        """The arm that a text tells; UserError for an unknown name or option, and for a registered arm whose optimizer
        is that of no plain one. Values are checked by `of`."""
        name, colon, words = text.partition(":") if isinstance(text, str) else (text, "", "")
        if name not in ARMS:
            options = "each with options as in repeat:repeat_last=3,repeat_times=2"
            raise UserError(f"arm is {shown(text)}; allowed: {', '.join(ARMS)}, {options}")
        options = read_options(f"arm {text!r}", words.split(",")) if colon else {}
        for option in options:
            choose(f"option of arm {text}", option, (*OF_TRAINING, *OF_MODEL))
        if len(text.encode()) > MOST_LETTERS:
            raise UserError(f"arm {shown(text)} is {len(text)} letters long; allowed: {MOST_LETTERS}")
        arm = ARMS[name]
        choose(f"optimizer in the changes of arm {name}", arm.changes.get("optimizer"), PLAIN)
        sentence = f"as {name}, with {', '.join(words.split(','))}" if words else arm.sentence
        return cls(text, sentence, arm.changes | options)

    @property
    def name(self) -> str:
        """The text as the name of a folder can be."""
        return re.sub(r"[^\w.,:=+-]+", "-", self.text)

    @property
    def optimizer(self) -> str:
        return str(self.changes["optimizer"])

    @property
    def against(self) -> str | None:
        """The plain arm it is held against; None for a plain arm itself."""
        return None if self.text in PLAIN else self.optimizer

    def of(
        self, model: ModelConfig, training: TrainingSettings, rate: float | None = None
    ) -> tuple[ModelConfig, TrainingSettings]:
        """(model, training) with its changes. rate: learning rate where the arm names none (None: the training's).

        Raises UserError, naming the arm, for values that cannot be.
        """
        own = {name: value for name, value in self.changes.items() if name not in OF_MODEL}
        own = {"learning_rate": training.learning_rate if rate is None else rate} | own
        repeats = {name: value for name, value in self.changes.items() if name in OF_MODEL}
        try:
            return replace(model, **repeats), replace(training, **own)
        except UserError as error:
            raise UserError(f"arm {self.text}: {error}") from error


def parse_study_arms(texts: str | Iterable[str] | None = None) -> tuple[ChosenArm, ...]:
    """The different arms of a sequence of texts (None: all of ARMS); UserError where one lacks its plain arm."""
    texts = list(ARMS) if texts is None else [texts] if isinstance(texts, str) else list(texts)
    arms = tuple(map(ChosenArm.parse, texts))
    names = [arm.name for arm in arms]
    twice = next((arm.text for arm in arms if names.count(arm.name) > 1), None)
    if twice is not None:
        raise UserError(f"arm {twice} stands there twice; name each once")
    lonely = next((arm for arm in arms if arm.against is not None and arm.against not in names), None)
    if lonely is not None:
        raise UserError(f"arm {lonely.text} is held against {lonely.against}, which is not among the arms; name it too")
    return arms
