"""Presets: model, training and run settings that belong together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from geowidth.errors import UserError, choose, seed_number, shown, whole
from geowidth.files import PathLike
from geowidth.models.config import ModelConfig
from geowidth.models.training import TrainingSettings
from geowidth.registry import Registry

if TYPE_CHECKING:
    from geowidth.artifacts.schedule import Schedule


@dataclass(frozen=True)
class RunSettings:
    """How `geowidth run` compares schedules. seeds: paired seeds of every arm. arms: schedules, the baseline first.

    measured_tokens: tokens of the clouds. multiple: widths are multiples of it.
    """

    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    measured_tokens: int
    multiple: int

    def __post_init__(self):
        for name in ("seeds", "arms"):
            if not isinstance(getattr(self, name), (list, tuple)) or not getattr(self, name):
                raise UserError(f"{name} is {shown(getattr(self, name))}; needed: a list of one or more")
        object.__setattr__(self, "seeds", tuple(seed_number("a seed", seed) for seed in self.seeds))
        wrong = next((arm for arm in self.arms if not isinstance(arm, str)), None)
        if wrong is not None:
            raise UserError(f"an arm is {shown(wrong)}; needed: a text, the name of a schedule")
        object.__setattr__(self, "arms", tuple(self.arms))
        object.__setattr__(self, "measured_tokens", whole("measured_tokens", self.measured_tokens, 4))
        object.__setattr__(self, "multiple", whole("multiple", self.multiple, 1))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunSettings:
        """The settings that `to_json` gave."""
        return cls(**value)


@dataclass(frozen=True)
class Preset:
    """A model with uniform widths, its training, and the run that compares schedules at its budget."""

    name: str
    model: ModelConfig
    training: TrainingSettings
    run: RunSettings

    @property
    def base_width(self) -> int:
        return self.model.widths[0]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name} | {part: getattr(self, part).to_json() for part in ("model", "training", "run")}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Preset:
        """The preset that `to_json` gave."""
        model, training = ModelConfig.from_json(value["model"]), TrainingSettings.from_json(value["training"])
        return cls(value["name"], model, training, RunSettings.from_json(value["run"]))

    def with_widths(self, widths: Iterable[int] | None) -> ModelConfig:
        """The model config with `widths`; None keeps the uniform ones."""
        if widths is None:
            return self.model
        try:
            widths = tuple(widths)
        except TypeError:
            raise UserError(f"widths is {shown(widths)}; needed: one width a layer") from None
        if len(widths) != self.model.layers:
            raise UserError(f"{len(widths)} widths came; preset {self.name!r} has {self.model.layers} layers")
        return replace(self.model, widths=widths)

    def with_schedule(self, schedule: Schedule, reader: str) -> Preset:
        """The preset whose model has the widths of a Schedule, and its attention heads where it states some.

        reader: who asks, for the message. Raises UserError for a schedule of another model: other layers, FFNs of
        another size, heads that this model cannot have or that are more in all than its own.
        """
        model = self.model
        if schedule.layers != model.layers:
            self.with_widths(schedule.widths)
        widths = schedule.widths_for(
            reader,
            layers=model.layers,
            dimension=model.dimension,
            heads=None,
            projections=model.projections,
            initialises=True,
        )
        heads = schedule.heads_for(reader, model.heads_by_layer) or model.layer_heads
        return replace(self, model=replace(model, widths=widths, layer_heads=heads))

    def with_vocabulary(self, vocabulary: int | None) -> Preset:
        """The preset whose model has that many token ids; None leaves them as they are."""
        return self if vocabulary is None else replace(self, model=replace(self.model, vocabulary=vocabulary))

    def with_repeats(self, last: int | None, times: int | None) -> Preset:
        """The preset whose model applies its last blocks several times; None leaves a number as it is."""
        given = {"repeat_last": last, "repeat_times": times}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if changes.get("repeat_last") and times is None and self.model.repeat_times == 1:
            raise UserError(f"repeat_last is {last}, but repeat_times is 1; say how often the blocks are applied")
        return replace(self, model=replace(self.model, **changes)) if changes else self

    def with_training(self, **changes: Any) -> TrainingSettings:
        """The training settings with `changes`; None leaves a setting as it is, unknown names raise UserError."""
        changes = {name: value for name, value in changes.items() if value is not None}
        for name in changes:
            choose("training setting", name, [f.name for f in fields(TrainingSettings)])
        # A smaller batch than the preset's microbatch means one microbatch, unless told otherwise.
        if "batch" in changes and "microbatch" not in changes:
            changes["microbatch"] = min(self.training.microbatch, changes["batch"])
        return replace(self.training, **changes)


# Sized so that 24 trainings end within five minutes on two cores (some 13,000 tokens a second and core): six seeds are
# the fewest with which a sign-flip test can reach 0.05, and more seeds tell more here than longer training. Small
# batches and many steps learn more from so few tokens than large batches do.
NANO = Preset(
    "nano",
    ModelConfig(vocabulary=256, layers=8, dimension=64, heads=2, widths=(256,) * 8, context=128),
    TrainingSettings(steps=480, batch=4, microbatch=4, learning_rate=3e-3, evaluations=4, evaluation_windows=192),
    RunSettings(
        seeds=(0, 1, 2, 3, 4, 5),
        arms=("uniform", "cosine", "geometry", "reversed"),
        measured_tokens=512,
        multiple=8,
    ),
)

# For trying things out: a run takes seconds and shows nothing about widths.
PICO = Preset(
    "pico",
    ModelConfig(vocabulary=256, layers=4, dimension=32, heads=2, widths=(64,) * 4, context=32),
    TrainingSettings(steps=40, batch=8, microbatch=8, learning_rate=4e-3, evaluation_windows=32),
    RunSettings(seeds=(0, 1, 2), arms=("uniform", "cosine", "geometry", "reversed"), measured_tokens=128, multiple=8),
)

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
HEAD_SIZE, MULTIPLE = 64, 64


def llama_shaped(
    name: str, *, layers: int, dimension: int, context: int, batch: int, microbatch: int, vocabulary: int = 32000
) -> Preset:
    """A preset whose other sizes follow from these, by the habits of Llama and of those who train such models.

    Shape (Touvron et al. 2023): SwiGLU of width 8/3 d, rounded to a multiple of 64; heads of 64 features; no biases;
    the output matrix is the embedding, as in the small Llama 3.2 models.

    Training: 20 tokens a parameter (Hoffmann et al. 2022). Peak learning rate 6e-4 sqrt(128e6 / parameters), which
    passes close to the table of Brown et al. 2020 from 125M to 1.3B; 2 % of the steps warm up, then half a cosine down
    to a tenth; AdamW with betas 0.9 and 0.95, decay 0.1, gradients clipped at norm 1, as Llama's. Products in bfloat16,
    weights in float32. microbatch: sequences that one GPU of 80 GB holds; the gradient is that of the whole batch.
    """
    width = MULTIPLE * round(8 * dimension / 3 / MULTIPLE)
    model = ModelConfig(vocabulary, layers, dimension, dimension // HEAD_SIZE, (width,) * layers, context)
    steps = TOKENS_PER_PARAMETER * model.parameters / (batch * context)
    training = TrainingSettings(
        steps=int(float(f"{steps:.2e}")),
        batch=batch,
        microbatch=microbatch,
        learning_rate=float(f"{6e-4 * (128e6 / model.parameters) ** 0.5:.1e}"),
        warmup=0.02,
        final_rate=0.1,
        evaluations=10,
        evaluation_windows=2**20 // context,
        dtype="bfloat16",
    )
    arms = ("uniform", "cosine", "geometry", "reversed")
    return Preset(name, model, training, RunSettings((0, 1, 2, 3, 4), arms, measured_tokens=1024, multiple=MULTIPLE))


# 128M, 256M and 440M are the sizes of Mudarisov et al. (arXiv 2608.02064). Their shapes and hyper-parameters are not
# the paper's: its text was not at hand, and all of them are the habits that `llama_shaped` states. Batches of half a
# million tokens, of a million for the largest (Brown et al. 2020).
M128 = llama_shaped("128m", layers=15, dimension=768, context=1024, batch=512, microbatch=32)
M256 = llama_shaped("256m", layers=18, dimension=1024, context=2048, batch=256, microbatch=16)
M440 = llama_shaped("440m", layers=20, dimension=1280, context=2048, batch=256, microbatch=8)
B1 = llama_shaped("1.2b", layers=22, dimension=2048, context=2048, batch=512, microbatch=4)


def _mini():
    """About 12M parameters that read bytes, for experiments: in float32 and small pieces, so that a CPU can, too."""
    shaped = llama_shaped("mini", layers=10, dimension=320, context=256, batch=128, microbatch=16, vocabulary=256)
    return replace(shaped, training=replace(shaped.training, dtype="float32", evaluation_windows=1024))


PRESETS = Registry("preset", Preset, (PICO, NANO, _mini(), M128, M256, M440, B1))
"""All presets by name; a module outside the package adds its own with `PRESETS.register(Preset(...))`."""


def preset_named(preset: PathLike | Preset) -> Preset:
    """The Preset of that name, or in the .toml or .json file of that name; a Preset is returned as it is."""
    if isinstance(preset, Preset):
        return preset
    from geowidth.models.preset_files import read_preset  # it reads presets, so it cannot be imported above

    return read_preset(preset)
