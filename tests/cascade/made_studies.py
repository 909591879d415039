"""Study folders made up in the shape that `geowidth cascade study` writes, with numbers that are known."""

from dataclasses import replace

import numpy as np

from geowidth import records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade.study_cells import IMPORTANCE_FILE, KIND
from geowidth.cascade.study_design import cell_folder, rate_folder, resolve_study
from geowidth.models.presets import preset_named

CORPUS = {"source": "stdlib", "digest": "3e4b" * 16, "unit": "byte"}
TEXT = {"corpus": "3e4b" * 16, "source": "stdlib", "split": "test", "seed": 0, "windows": 64, "context": 128}


def importance_of(arm, seed, layers):
    """Importance by block: a first block far above the others, and late blocks that `repeat` makes matter more."""
    generator = np.random.default_rng([seed, len(arm), ord(arm[0])])
    values = np.array([2.5, *(0.12 - 0.04 * np.arange(layers - 1) / layers)])
    if arm.startswith("repeat"):
        values[layers // 2 :] += 0.4
    return (values + 0.01 * generator.standard_normal(layers)).tolist()


def make_study(folder, arms=None, seeds=(0, 1, 2, 3, 4, 5), layers=8, unfinished=()):
    """A study folder with every cell but those of `unfinished` ((arm, seed) pairs); returns the CascadeStudy."""
    nano = preset_named("nano")
    preset = replace(nano, model=replace(nano.model, layers=layers, widths=(256,) * layers))
    study = resolve_study(preset, arms=arms, seeds=seeds)
    records.write_json(folder / "settings.json", study.to_json())
    for rate in study.rates if study.needs_rate else ():
        write_result(rate_folder(folder, rate), study, "sgd", study.rate_seed, 3 - rate if rate < 0.1 else 2.98 + rate)
    for arm in study.arms:
        for seed in study.seeds:
            if (arm.name, seed) not in unfinished:
                write_cell(cell_folder(folder, arm.name, seed), study, arm.name, seed)
    return study


def write_result(place, study, arm, seed, loss):
    """result.json of one training."""
    settings = study.preset.training
    records.write_json(place / "result.json", {
        "kind": "geowidth.training_result", "schema": 1, "arm": arm, "seed": seed, "widths": [256], "loss": loss,
        "best_loss": loss, "parameters": 541760, "steps": settings.steps, "tokens": 245760, "flops": 9e11,
        "seconds": 20.5, "evaluation_tokens": 24576, "preset": "nano", "corpus": CORPUS,
        "model": study.preset.model.to_json(), "training": settings.to_json(), "environment": {"torch": "2.13.0"},
    })  # fmt: skip


def write_cell(place, study, arm, seed):
    """result.json, ledger.json and importance.json of one training."""
    layers = study.preset.model.layers
    write_result(place, study, arm, seed, 1.7 + 0.01 * seed + 0.02 * (arm != "adamw"))
    importance = importance_of(arm, seed, layers)
    blocks = [f"blocks.{block}" for block in range(layers)]
    norms = np.arange(layers, 0, -1) + 0.1 * seed
    Ledger(tuple(blocks), 480, 0, norms, norms / norms.sum()).write(place / "ledger.json")
    records.write_json(place / IMPORTANCE_FILE, {
        "kind": KIND, "schema": 1, "blocks": blocks, "loss": {"mean": 1.75, "standard_error": 0.05},
        "importance": importance, "standard_errors": [0.004] * layers, "text": TEXT,
    })  # fmt: skip
