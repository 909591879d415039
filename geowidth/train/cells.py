"""The cells of a comparison, one an arm and seed: finished, begun or missing, and the job that finishes each.

What a cell is to be is read from its config.json, or from that of another seed of its arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.forms import COUNT, TEXT
from geowidth.models.config import ModelConfig
from geowidth.models.presets import Preset, RunSettings
from geowidth.models.training import TrainingSettings
from geowidth.train import checkpoint, state
from geowidth.train.supervision import run_flops

if TYPE_CHECKING:
    from geowidth.train.parallel import TrainJob

SETTINGS_FILE, RUN_KIND = "settings.json", "geowidth.run"
ASKED = {"settings": {"arms": [TEXT], "seeds": [COUNT]}}


@dataclass(frozen=True)
class PlannedCell:
    """One arm and seed. model, training: what it is or, where its arm was never begun, another arm's in its place.

    config: the content of config.json, its own or of another seed of its arm; None where the arm was never begun.
    result: of a finished cell. step: of the last state. begun: whether its own folder is.
    """

    arm: str
    seed: int
    folder: Path
    model: ModelConfig
    training: TrainingSettings
    config: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    step: int = 0
    begun: bool = False

    @property
    def state(self) -> str:
        """In words."""
        if self.result is not None:
            return "finished"
        return f"at step {self.step} of {self.training.steps}" if self.begun else "missing"

    @property
    def tokens(self) -> int:
        """Tokens of the whole training."""
        return self.training.steps * self.training.batch * self.model.context

    @property
    def flops(self) -> int:
        """FLOPs of the whole training."""
        return run_flops(self.model, self.training)

    @property
    def left(self) -> float:
        """The share of its steps that is to be done."""
        return 0.0 if self.result is not None else 1 - self.step / self.training.steps

    @property
    def preset(self) -> Preset:
        """Its model and training as a preset, of one seed and arm."""
        once = RunSettings((self.seed,), (self.arm,), measured_tokens=4, multiple=1)
        return Preset(self.arm if self.config is None else self.config["preset"], self.model, self.training, once)

    def job(self, device: str | None = None) -> TrainJob:
        """The TrainJob that finishes it on `device` (None: the cpu); a UserError where its widths are not known."""
        from geowidth.train.parallel import TrainJob

        if self.config is None:
            raise UserError(
                f"arm {self.arm} was never begun, so its widths are not known; the run's own command makes them"
            )
        scales = self.config.get("initial_scales")
        return TrainJob(
            self.folder,
            self.model.widths,
            self.seed,
            self.arm,
            self.preset,
            corpus=self.config["corpus"]["source"],
            initial_scales=None if scales is None else tuple(scales),
            device=device or "cpu",
        )


def cells_in(folders: Sequence[PathLike]) -> list[PlannedCell]:
    """The cells of run folders and training folders. Of a run folder also those that its settings.json asks for.

    Raises UserError for a folder that is neither, and for damaged files.
    """
    found: list[tuple[str, int, Path]] = []
    for folder in map(Path, folders):
        found += _places(folder)
    configs = {place: _config(place) for _, _, place in found}
    known = next((config for config in configs.values() if config is not None), None)
    if known is None:
        raise UserError(f"nothing is begun in {' '.join(map(str, folders))}; the command that makes the run plans it")
    shape, settings = ModelConfig.from_json(known["model"]), TrainingSettings.from_json(known["training"])
    return _filled(found, configs, shape, settings)


def planned_cells(
    folder: Path, arms: Iterable[str], seeds: Iterable[int], model: ModelConfig, training: TrainingSettings
) -> list[PlannedCell]:
    """The cells of a run folder, begun or not. model, training: of arms whose widths are not known yet."""
    seeds = list(seeds)
    found = [(arm, seed, folder / "arms" / arm / f"seed-{seed}") for arm in arms for seed in seeds]
    return _filled(found, {place: _config(place) for _, _, place in found}, model, training)


def _places(folder):
    """[(arm, seed, training folder)] of a run folder or of one training folder."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist; name a run folder or training folders")
    if (folder / checkpoint.CONFIG_FILE).is_file():
        config = _config(folder)
        return [(config["arm"], config["seed"], folder)]
    inside = {
        (path.parent.name, int(path.name[5:])): path
        for path in (folder / "arms").glob("*/seed-*")
        if path.name[5:].isdigit()
    }
    path = folder / SETTINGS_FILE
    if not inside and not path.is_file():
        raise UserError(f"{folder} is neither a run folder (with arms/ARM/seed-S) nor a training folder")
    asked: dict[str, Any] = {"arms": [], "seeds": []}
    if path.is_file():
        record = records.read_json(path, RUN_KIND, 1)
        forms.check(path, record, ASKED, "delete the folder and run again")
        asked = record["settings"]
    arms = dict.fromkeys([*asked["arms"], *(arm for arm, _ in sorted(inside))])
    seeds = dict.fromkeys([*asked["seeds"], *(seed for _, seed in sorted(inside))])
    return [(arm, seed, folder / "arms" / arm / f"seed-{seed}") for arm in arms for seed in seeds]


def _config(folder):
    """config.json of a training folder, or None."""
    path = folder / checkpoint.CONFIG_FILE
    if not files.exists(path):
        return None
    config = records.read_json(path, checkpoint.CONFIG_KIND, checkpoint.SCHEMA)
    forms.check(path, config, {**checkpoint.CONFIG, "preset": TEXT, "corpus": {"source": TEXT}}, checkpoint.AGAIN)
    return config


def _filled(found, configs, model, training):
    cells = []
    for arm, seed, folder in found:
        own = configs[folder]
        config = own or next((configs[f] for a, _, f in found if a == arm and configs[f] is not None), None)
        cell = PlannedCell(arm, seed, folder, model, training, config)
        if config is not None:
            shape, settings = ModelConfig.from_json(config["model"]), TrainingSettings.from_json(config["training"])
            cell = replace(cell, model=shape, training=settings)
        if own is not None:
            result, step = checkpoint.read_result(folder), state.saved_step(folder)
            cell = replace(cell, result=result, step=step, begun=True)
        cells.append(cell)
    return cells
