"""Presets from a file, TOML or JSON: a whole one, or the changes to another.

base = "128m"            # the preset that is changed; without it, everything that has no default must be there
name = "128m-deep"       # what results call it (default: the file's name)

[model]                  # fields of ModelConfig; `width` stands for as many equal widths
layers = 30
width = 1024

[training]               # fields of TrainingSettings
learning_rate = 8e-4

[run]                    # fields of RunSettings
seeds = [0, 1, 2, 3, 4]
"""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from geowidth.errors import UserError, choose, shown, whole
from geowidth.files import PathLike
from geowidth.models.config import ModelConfig
from geowidth.models.presets import PRESETS, Preset, RunSettings
from geowidth.models.training import TrainingSettings
from geowidth.records import read_table

ENDINGS = (".toml", ".json")
TABLES = {"model": ModelConfig, "training": TrainingSettings, "run": RunSettings}
KEYS = ("base", "name", *TABLES)


def read_preset(name: PathLike) -> Preset:
    """The Preset of that name, or in the file of that name if it ends in .toml or .json."""
    path = Path(name)
    if path.suffix not in ENDINGS:
        return PRESETS[str(name)]
    table = read_table(path)
    for key in table:
        choose(f"{path}: key", key, KEYS)
    return preset_from(table, str(path))


def preset_from(table: Mapping[str, Any], where: str, base: Preset | None = None) -> Preset:
    """The Preset that the entries KEYS of a settings file describe.

    where: the file, for messages and for the name. base: what the tables change where the file names no `base`.
    Raises UserError, in one line that begins with the file, for unknown keys, wrong types and what does not fit.
    """
    if "base" in table:
        base = PRESETS[choose(f"{where}: base", table["base"], list(PRESETS))]
    name = table.get("name", Path(where).stem)
    if not isinstance(name, str) or not name.strip() or any(letter in name for letter in "/\\\0"):
        raise UserError(f"{where}: name is {shown(name)}; allowed: a text that can name a folder")
    parts = {part: _entries(table, part, where) for part in TABLES}
    try:
        model = _model(parts["model"], base)
        training = _training(parts["training"], base)
        run = _run(parts["run"], base)
        return Preset(name, model, training, run)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _entries(table, part, where):
    """The entries of one table, each of a known name."""
    entries = table.get(part, {})
    if not isinstance(entries, dict):
        raise UserError(f"{where}: {part} is {shown(entries)}; needed: a table, [{part}]")
    allowed = [field.name for field in fields(TABLES[part])] + (["width"] if part == "model" else [])
    for key in entries:
        choose(f"{where}: key in [{part}]", key, allowed)
    return dict(entries)


def _model(entries, base):
    if "width" in entries:
        if "widths" in entries:
            raise UserError("[model] has width and widths; give one of them")
        layers = entries.get("layers", base.model.layers if base else None)
        entries["widths"] = [whole("width", entries.pop("width"), 0)] * whole("layers", layers, 1)
    if base is not None:
        entries = {**base.model.to_json(), **_fitting(entries, base.model)}
    _check_whole("model", ModelConfig, entries)
    return ModelConfig.from_json(entries)


def _fitting(entries, model):
    """The changed entries, with what of `model` cannot stay as it is beside them."""
    if "widths" in entries:
        pass
    elif entries.get("dimension", model.dimension) != model.dimension:
        raise UserError("[model] changes dimension; give width (or widths) too")
    elif entries.get("layers", model.layers) != model.layers:
        if len(set(model.widths)) > 1:
            raise UserError("[model] changes layers, and its base has different widths; give widths too")
        entries["widths"] = [model.widths[0]] * whole("layers", entries["layers"], 1)
    if entries.get("layers", model.layers) != model.layers or "heads" in entries:
        entries.setdefault("layer_heads", None)
    if "activation" in entries:
        entries.setdefault("gated", None)
    return entries


def _training(entries, base):
    if base is not None:
        none = next((name for name, value in entries.items() if value is None), None)
        if none is not None:
            raise UserError(f"{none} is null; leave it out, or give a value")
        return base.with_training(**entries)
    _check_whole("training", TrainingSettings, entries)
    return TrainingSettings.from_json(entries)


def _run(entries, base):
    if base is not None:
        return replace(base.run, **entries)
    _check_whole("run", RunSettings, entries)
    return RunSettings(**entries)


def _check_whole(part, kind, entries: Collection[str]):
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in entries]
    if missing:
        raise UserError(f"[{part}] lacks {', '.join(missing)}; give them, or name a base ({', '.join(PRESETS)})")
