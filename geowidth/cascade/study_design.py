"""What a cascade study is to be: preset, arms, paired seeds, text to judge by; and the jobs and cells that follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth import files, forms, records
from geowidth.cascade.study_arms import ChosenArm, parse_study_arms
from geowidth.cascade.study_files import SETTINGS_FILE, SETTINGS_KIND
from geowidth.errors import UserError, positive, seed_number, shown, whole
from geowidth.files import PathLike
from geowidth.forms import COUNT, FINITE, OBJECT, TEXT
from geowidth.models.config import ModelConfig
from geowidth.models.presets import Preset, RunSettings, preset_named
from geowidth.models.training import TrainingSettings

if TYPE_CHECKING:
    from geowidth.train.cells import PlannedCell
    from geowidth.train.parallel import TrainJob

SCHEMA = 1
SETTINGS = {
    "preset": TEXT, "corpus": TEXT, "arms": [TEXT], "seeds": [COUNT], "windows": COUNT, "seed": COUNT,
    "rates": [FINITE], "model": OBJECT, "training": OBJECT,
}  # fmt: skip
LOOK = "geowidth.cascade.training:block_norms"  # the ledger, as a worker process is told of it
RATES = (0.003, 0.01, 0.03, 0.1)  # of SGD with momentum, tried where an arm names none
WINDOWS = 64
AGAIN = "delete the folder and run geowidth cascade study again"


@dataclass(frozen=True)
class CascadeStudy:
    """A study, fully decided; `resolve_study` makes one.

    preset   model and training that all arms share; its name is all that its runs' settings are read for
    seeds    paired seeds, one model of every arm each
    windows  windows of held-out text that blocks are judged on, drawn by `seed`
    rates    learning rates that SGD is tried with before its arms are trained
    """

    preset: Preset
    corpus: str
    arms: tuple[ChosenArm, ...]
    seeds: tuple[int, ...]
    windows: int = WINDOWS
    seed: int = 0
    rates: tuple[float, ...] = RATES

    @property
    def needs_rate(self) -> bool:
        """Whether an arm trains by SGD without a learning rate of its own."""
        return any(arm.optimizer == "sgd" and "learning_rate" not in arm.changes for arm in self.arms)

    @property
    def rate_seed(self) -> int:
        """The seed by which rates are tried: the smallest that no arm is trained by."""
        return next(seed for seed in range(len(self.seeds) + 1) if seed not in self.seeds)

    def to_json(self) -> dict[str, Any]:
        settings = {
            "preset": self.preset.name,
            "corpus": self.corpus,
            "arms": [arm.text for arm in self.arms],
            "seeds": list(self.seeds),
            "windows": self.windows,
            "seed": self.seed,
            "rates": list(self.rates),
            "steps": self.preset.training.steps,
            "model": self.preset.model.to_json(),
            "training": self.preset.training.to_json(),
        }
        return {"kind": SETTINGS_KIND, "schema": SCHEMA, "settings": settings}

    def shape(self, arm: ChosenArm, rate: float | None) -> tuple[ModelConfig, TrainingSettings]:
        """(model, training) of an arm. rate: SGD's."""
        return arm.of(self.preset.model, self.preset.training, rate if arm.optimizer == "sgd" else None)

    def job(self, folder: Path, arm: ChosenArm, seed: int, rate: float | None, device: str) -> TrainJob:
        """The training of one arm and seed, with a ledger."""
        from geowidth.train.parallel import TrainJob

        model, training = self.shape(arm, rate)
        preset = replace(self.preset, model=model, training=training)
        out = cell_folder(folder, arm.name, seed)
        return TrainJob(out, None, seed, arm.name, preset, None, self.corpus, device=device, look=LOOK)

    def rate_job(self, folder: Path, rate: float, device: str) -> TrainJob:
        """The training that tries a learning rate of SGD."""
        from geowidth.train.parallel import TrainJob

        training = replace(self.preset.training, optimizer="sgd", learning_rate=rate)
        preset = replace(self.preset, training=training)
        return TrainJob(
            rate_folder(folder, rate), None, self.rate_seed, "sgd", preset, None, self.corpus, device=device
        )

    def check(self, processes: int | None = None) -> None:
        """Refuse what only the corpus and this machine can tell, before anything is written."""
        from geowidth.text.corpus import load_corpus, windows
        from geowidth.train.preparation import check_corpus
        from geowidth.train.processes import process_count

        process_count(processes)
        text, model = load_corpus(self.corpus), self.preset.model
        check_corpus(text, model, self.preset.training)
        there = len(windows(text.split("test"), model.context, self.windows))
        if there < self.windows:
            raise UserError(
                f"--windows is {self.windows}; the test split of {text.source!r} has {there} windows of "
                f"{model.context} tokens; ask for fewer or give more text"
            )


def resolve_study(
    preset: str | Preset = "nano",
    corpus: PathLike = "stdlib",
    arms: str | Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    steps: int | None = None,
    windows: int = WINDOWS,
    seed: int = 0,
    rates: Iterable[float] | None = None,
) -> CascadeStudy:
    """A CascadeStudy with the preset's defaults filled in; raises UserError for anything that cannot run.

    arms: texts, see geowidth.cascade.study_arms (None: all). seeds: paired ones (None: those of the preset's run).
    """
    chosen = preset_named(preset)
    if chosen.model.layers < 2:
        raise UserError(f"preset {chosen.name!r} has 1 layer; a study of depth needs two or more")
    _refuse_interventions(chosen)
    chosen = replace(chosen, training=chosen.with_training(steps=steps))
    seeds = tuple(seed_number("a seed", one) for one in (chosen.run.seeds if seeds is None else seeds))
    if not seeds or len(set(seeds)) != len(seeds):
        raise UserError(f"seeds are {' '.join(map(str, seeds))}; name at least one, each once")
    tried = tuple(positive("a rate", rate) for rate in (RATES if rates is None else rates))
    if not tried or len(set(tried)) != len(tried):
        raise UserError(f"rates are {shown(list(tried))}; name at least one, each once")
    found = CascadeStudy(
        chosen,
        str(corpus),
        parse_study_arms(arms),
        seeds,
        whole("windows", windows, 2),
        seed_number("seed", seed),
        tuple(sorted(tried)),
    )
    for arm in found.arms:
        found.shape(arm, found.rates[0])
    return found


def _refuse_interventions(preset):
    """Plain arms change nothing: what other arms do must not be in the preset already."""
    preset.model.refuse_repeats("a study, whose plain arms repeat none,")
    usual = {"optimizer": "adamw", "equal_gradients": False, "exit_loss": 0.0, "layer_dropout": 0.0}
    for name, value in usual.items():
        found = getattr(preset.training, name)
        if found != value:
            raise UserError(
                f"preset {preset.name!r} has {name} {found!r}; a study's plain arms need {value!r}; change it"
            )


def read_settings(folder: PathLike) -> CascadeStudy:
    """The study that the settings.json in a folder asks for."""
    path = Path(folder) / SETTINGS_FILE
    record = records.read_json(path, SETTINGS_KIND, SCHEMA)
    forms.check(path, record, {"settings": SETTINGS}, AGAIN)
    asked = record["settings"]
    try:
        model, training = ModelConfig.from_json(asked["model"]), TrainingSettings.from_json(asked["training"])
        once = RunSettings(tuple(asked["seeds"]), ("uniform",), measured_tokens=4, multiple=1)
        preset = Preset(asked["preset"], model, training, once)
        given = {name: asked[name] for name in ("corpus", "arms", "seeds", "windows", "seed", "rates")}
        return resolve_study(preset, **given)
    except (UserError, TypeError) as error:
        raise UserError(f"{path}: {error}; {AGAIN}") from error


def cell_folder(folder: Path, arm: str, seed: int) -> Path:
    """Training folder of one arm and seed."""
    return folder / "arms" / arm / f"seed-{seed}"


def rate_folder(folder: Path, rate: float) -> Path:
    """Training folder of a rate that is tried."""
    return folder / "rates" / f"{rate!r}"


def planned_study(study: CascadeStudy, folder: Path, rate: float | None = None) -> list[PlannedCell]:
    """The cells of a study, the tried rates first; a UserError for a folder of another study. Nothing is written."""
    from geowidth.train.cells import planned_cells

    if files.exists(folder / SETTINGS_FILE):
        records.claim_folder(folder / SETTINGS_FILE, study.to_json(), "a study")
    found = []
    if study.needs_rate and len(study.rates) > 1:
        for one in study.rates:
            training = replace(study.preset.training, optimizer="sgd", learning_rate=one)
            cells = planned_cells(folder, [f"sgd at {one:g}"], [study.rate_seed], study.preset.model, training)
            found += [_placed(cell, rate_folder(folder, one)) for cell in cells]
    for arm in study.arms:
        found += planned_cells(folder, [arm.name], study.seeds, *study.shape(arm, rate or study.rates[0]))
    return found


def _placed(cell, folder):
    """A planned cell with the state of another folder."""
    from geowidth.train import checkpoint, state

    result, step = checkpoint.read_result(folder), state.saved_step(folder)
    return replace(cell, folder=folder, result=result, step=step, begun=(folder / checkpoint.CONFIG_FILE).is_file())
