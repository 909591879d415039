"""Files of CascadeFormer's models, to be trained: schedules, presets where the depth differs, and what each costs."""

from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.cascade.models import CHANGED, MATCHED_BY, CascadeModel, cascade_models, matched_uniform
from geowidth.exchange.folders import written_whole
from geowidth.files import PathLike
from geowidth.models.presets import Preset, preset_named

KIND, SCHEMA = "geowidth.cascade_models", 1
RECORD_FILE = "models.json"


def write_cascade_models(preset: PathLike | Preset, out: PathLike, **options: Any) -> dict[str, Any]:
    """Write the models of `cascade_models` for a preset, and uniform ones that match AF, to the new folder `out`.

    NAME.json is a schedule for `geowidth train --preset PRESET --schedule`, or where the number of layers differs a
    preset for `geowidth train --preset`. Models of one seed start from the same values wherever their shapes agree.
    options: those of `cascade_models`; the matching widths are multiples of the quantum too, so they match only as near
    as one quantum allows. Returns the record in models.json: of every model its file, parameters, FLOPs a token and
    bytes of keys and values a token, also over the uniform model's.
    """
    preset, quantum = preset_named(preset), options.get("quantum", 1)
    models = cascade_models(preset.model, **options)
    for change in CHANGED:
        for by in MATCHED_BY:
            match = matched_uniform(preset.model, models["AF"].config, by, change, quantum=quantum)
            models[match.name] = match
    facts = {name: _facts(model, models["uniform"]) for name, model in models.items()}
    settings = {"preset": preset.name, "options": options, "environment": records.environment()}
    record = {"kind": KIND, "schema": SCHEMA, **settings, "models": facts}

    def fill(folder: Path) -> None:
        for name, model in models.items():
            _write(preset, model, folder / f"{name}.json")
        records.write_json(folder / RECORD_FILE, record)

    written_whole(out, fill)
    return record


def _facts(model, uniform):
    """What stands in the record of one model."""
    config, found, base = model.config, model.facts(), uniform.facts()
    sizes = {"layers": config.layers, "widths": list(config.widths), "heads": list(config.heads_by_layer)}
    kind = "preset" if model.schedule is None else "schedule"
    return sizes | found | {"over_uniform": {n: found[n] / base[n] for n in found}, "file": kind}


def _write(preset, model: CascadeModel, path):
    """The file by which one model is trained."""
    if model.schedule is not None:
        model.schedule.write(path)
        return
    parts = {"model": model.config, "training": preset.training, "run": preset.run}
    name = f"{preset.name}-{model.name}"
    records.write_json(path, {"name": name} | {part: value.to_json() for part, value in parts.items()})
