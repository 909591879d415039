"""Compare trained arms seed by seed: paired statistics, costs, and a plain sentence of what may be concluded.

Reads   a run folder (RUN/arms/ARM/seed-S) or single training folders; each must be finished (result.json).
Writes  comparison.json (into the run folder, or to --out) and prints a table.

Arms are compared only on equal terms: same seeds, tokens, corpus, training settings and model except for widths and
heads, and no arm with more parameters than the baseline. Anything else is refused. An arm with over 1 % fewer is named,
and so is what differs in the machines and versions that trained them.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.models.config import ModelConfig
from geowidth.train import checkpoint
from geowidth.train.evidence import compare_arms, loss_unit

COMPARISON_FILE = "comparison.json"
COSTS = ("parameters", "tokens", "flops")
NEARLY_EQUAL = 0.99
FREE = ("widths", "layer_heads")  # fields of the model in which arms may differ


def compare_folders(
    folders: PathLike | Sequence[PathLike],
    *,
    baseline: str = "uniform",
    confidence: float = 0.95,
    effect: float = 0.01,
    power: float = 0.8,
) -> dict[str, Any]:
    """The comparison record (the content of comparison.json) of a run folder or of training folders.

    folders: one path or several. Raises UserError for unfinished folders and arms that are not on equal terms.
    """
    folders = [folders] if isinstance(folders, (str, Path)) else folders
    results = [read_finished(folder) for folder in training_folders(folders)]
    arms = group(results, baseline)
    check_equal_terms(arms, baseline)
    losses = {arm: {seed: result["loss"] for seed, result in by_seed.items()} for arm, by_seed in arms.items()}
    options = {"confidence": confidence, "effect": effect, "power": power}
    unit = loss_unit(results[0]["corpus"])
    comparison = compare_arms(losses, baseline, **options, unit=unit)
    settings = {"unit": f"{unit} of the validation set", "corpus": results[0]["corpus"], **options}
    settings |= {name: results[0][name] for name in ("training", "evaluation_tokens", "preset")}
    facts = {arm: costs(by_seed) for arm, by_seed in arms.items()}
    record = comparison.to_json(facts) | {"settings": settings, "environment": records.environment()}
    notes = [*smaller_arms(facts, baseline), *different_environments(arms)]
    record["sentence"] = " ".join([record["sentence"], *notes])
    return record


def smaller_arms(facts, baseline):
    """A sentence on every arm that has clearly fewer parameters than the baseline, more than rounding leaves over."""
    most = facts[baseline]["parameters"]
    return [
        f"{arm} has {100 * (1 - fact['parameters'] / most):.1f} % fewer parameters than {baseline}: unequal budgets."
        for arm, fact in facts.items()
        if fact["parameters"] < NEARLY_EQUAL * most
    ]


def training_folders(folders):
    """All training folders that `folders` (run folders or training folders) name, sorted within a run folder."""
    found = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"folder {folder} does not exist; name a run folder or training folders")
        inside = sorted((folder / "arms").glob("*/seed-*"))
        if not inside and not (folder / checkpoint.CONFIG_FILE).is_file():
            raise UserError(f"{folder} is neither a run folder (with arms/ARM/seed-S) nor a training folder")
        found += inside or [folder]
    return found


def read_finished(folder):
    """result.json of a training folder; a UserError if the training is not finished."""
    result = checkpoint.read_result(folder)
    if result is None:
        raise UserError(f"training in {folder} is not finished; run its command again to finish it")
    return result | {"folder": str(folder)}


def group(results, baseline):
    """{arm: {seed: result}} with the baseline first."""
    arms: dict[str, dict[int, dict[str, Any]]] = {}
    for result in results:
        by_seed = arms.setdefault(result["arm"], {})
        if result["seed"] in by_seed:
            twin = by_seed[result["seed"]]["folder"]
            raise UserError(
                f"{result['folder']} and {twin} are both arm {result['arm']} seed {result['seed']}; name one of them"
            )
        by_seed[result["seed"]] = result
    if baseline not in arms:
        raise UserError(f"baseline is {baseline!r}; allowed: {', '.join(arms)} (see --baseline)")
    return {arm: dict(sorted(arms[arm].items())) for arm in sorted(arms, key=lambda arm: arm != baseline)}


def check_equal_terms(arms, baseline):
    """Raise a UserError that names the first thing in which the results of `arms` differ but may not."""
    reference = next(iter(arms[baseline].values()))
    wanted = terms(reference)
    for arm, by_seed in arms.items():
        if set(by_seed) != set(arms[baseline]):
            raise UserError(
                f"arm {arm} has seeds {list(by_seed)}, {baseline} has {list(arms[baseline])}; train the same in both"
            )
        first = taper_of(next(iter(by_seed.values())))
        for result in by_seed.values():
            found = taper_of(result)
            for what in {**first, **found}:
                if found.get(what) != first.get(what):
                    raise UserError(
                        f"arm {arm} has different {what} in {result['folder']}; an arm is one list of {what}"
                    )
            if result.get("initial_scales") != next(iter(by_seed.values())).get("initial_scales"):
                raise UserError(f"arm {arm} has different initial scales in {result['folder']}; an arm is one start")
            own = terms(result)
            for name in {**wanted, **own}:
                if own.get(name) != wanted.get(name):
                    raise UserError(
                        f"not comparable: {name} is {own.get(name)} in {result['folder']} but {wanted.get(name)} in "
                        f"{reference['folder']}; train both with the same"
                    )
            if result["parameters"] > reference["parameters"]:
                raise UserError(
                    f"not comparable: {result['folder']} has {result['parameters']:,} parameters, above the budget of "
                    f"{reference['parameters']:,} that {baseline} has; give arm {arm} smaller widths"
                )


def terms(result):
    """What must be equal in all results, by name; a setting that an older result lacks counts as its default."""
    model, training = {**defaults(ModelConfig), **result["model"]}, checkpoint.bits_of(result["training"])
    return {
        "tokens": result["tokens"],
        "corpus digest": result["corpus"]["digest"],
        "evaluation_tokens": result["evaluation_tokens"],
        **{f"model {name}": value for name, value in model.items() if name not in FREE},
        **{f"training {name}": value for name, value in training.items()},
    }


def taper_of(result):
    """What an arm spends by layer: its widths, and its attention heads where they are not the same in all."""
    heads = result["model"].get("layer_heads")
    return {"widths": result["widths"]} | ({} if heads is None else {"heads": heads})


def defaults(kind):
    """{name: default} of a dataclass's fields that have one, as JSON gives them back."""
    return records.loads(records.dumps({f.name: f.default for f in fields(kind) if f.default is not MISSING}))


def different_environments(arms):
    """A sentence on what the results' machines and versions differ in, or none: [sentence] or []."""
    found: dict[str, dict[str, None]] = {}
    for by_seed in arms.values():
        for result in by_seed.values():
            for name, value in (result.get("environment") or {}).items():
                found.setdefault(name, {})[str(value)] = None
    several = [f"{name} {', '.join(values)}" for name, values in found.items() if len(values) > 1]
    if not several:
        return []
    return [f"Not all were trained alike ({'; '.join(several)}): a part of any difference may come from that."]


def costs(by_seed):
    """What stands beside an arm's losses."""
    results = list(by_seed.values())
    facts = taper_of(results[0]) | {name: results[0][name] for name in COSTS}
    return facts | {"seconds": sum(result["seconds"] for result in results) / len(results)}
