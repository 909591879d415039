"""What a calibration trains: the preset's model with one layer's width changed at a time, for every seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth import records
from geowidth.diagnose.sweep import Sweep
from geowidth.errors import UserError, seed_number

if TYPE_CHECKING:
    from geowidth.models.presets import Preset
    from geowidth.train import TrainJob

SETTINGS_KIND, SETTINGS_SCHEMA = "geowidth.calibration_settings", 1
DEFAULT_FACTORS, DEFAULT_SEEDS = (1 / 16, 1 / 4, 4.0), (0, 1, 2, 3)


@dataclass(frozen=True)
class CalibrationDesign:
    """What is trained: the preset's model with each layer's width times each factor, for every seed.

    steps: length of every training; None for the preset's.
    """

    preset: Preset
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    factors: tuple[float, ...] = DEFAULT_FACTORS
    steps: int | None = None
    corpus: str = "stdlib"
    tokens: int = 512

    def __post_init__(self):
        steps = self.preset.training.steps if self.steps is None else self.steps
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "seeds", tuple(seed_number("a seed", seed) for seed in self.seeds))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"seeds are {' '.join(map(str, self.seeds))}; allowed: different whole numbers from 0 up")
        if len(self.factors) < 2 or not all(0 < f < np.inf for f in self.factors):
            raise UserError(f"factors are {self.factors}; allowed: two or more different numbers above 0")
        if steps < 1 or self.tokens < 4:
            raise UserError(
                f"steps is {self.steps} and tokens is {self.tokens}; at least 1 step and 4 tokens are needed"
            )
        widths = self.varied
        if (widths[0] == self.preset.base_width).any():
            raise UserError(f"a factor leaves the width at {self.preset.base_width}; the base is always trained")
        if len(set(widths[0])) != len(widths[0]):
            raise UserError(f"two factors give the same multiple of {self.preset.run.multiple}; leave one out")
        layers, count = self.preset.model.layers, len(self.factors)
        Sweep(np.ones(len(self.seeds)), np.ones((layers, count, len(self.seeds))), self.ratios)

    @property
    def varied(self) -> np.ndarray:
        """The other widths of every layer, ints (layers, factors): multiples of the preset's quantum, at least one."""
        quantum = self.preset.run.multiple
        rows = [[max(1, round(w * f / quantum)) * quantum for f in self.factors] for w in self.preset.model.widths]
        return np.array(rows)

    @property
    def ratios(self) -> np.ndarray:
        """varied / reference width, float64 (layers, factors)."""
        return self.varied / np.array(self.preset.model.widths)[:, None]

    def models(self):
        """[(folder name, widths, layer or None, width or None)] of every architecture, the base first."""
        base = self.preset.model.widths
        found: list[tuple[str, tuple[int, ...], int | None, int | None]] = [("base", base, None, None)]
        for layer, row in enumerate(self.varied.tolist()):
            for width in row:
                widths = (*base[:layer], width, *base[layer + 1 :])
                found.append((f"layer-{layer}/width-{width}", widths, layer, width))
        return found

    def jobs(self, folder: Path) -> list[TrainJob]:
        """One TrainJob per seed and architecture, seed by seed."""
        from geowidth.train import TrainJob

        return [
            TrainJob(
                folder / "runs" / name / f"seed-{seed}",
                widths,
                seed,
                name,
                self.preset,
                self.steps,
                self.corpus,
                {"evaluations": 1},  # only the last loss counts here
            )
            for seed in self.seeds
            for name, widths, *_ in self.models()
        ]

    def to_json(self) -> dict[str, Any]:
        """The settings that must not change within one folder."""
        own = {name: getattr(self, name) for name in ("seeds", "factors", "steps", "corpus", "tokens")}
        return {**own, "preset": self.preset.name, "widths": self.preset.model.widths, "varied": self.varied}

    def claim(self, folder):
        """Make the folder, or check that it belongs to the same design."""
        record = {"kind": SETTINGS_KIND, "schema": SETTINGS_SCHEMA, "settings": self.to_json()}
        records.claim_folder(folder / "settings.json", record, "a calibration")
