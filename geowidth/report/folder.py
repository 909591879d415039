"""What the report reads: the files of a run folder, whichever exist, and what is missing with the way to get it."""

import re
import shlex
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path

from geowidth import files, records
from geowidth.errors import UserError
from geowidth.report import shapes
from geowidth.report.numbers import is_finite, is_number
from geowidth.train.evidence import loss_unit

SCHEDULE_ORDER = ("uniform", "cosine", "geometry", "reversed")


def as_record(value, kind):
    """A record as a dict, from a dict, from an object with `to_json()`, or read from the path of a file."""
    if isinstance(value, (str, Path)):
        where, value = value, records.read_json(value, kind=kind, schema=1)
    else:
        where = type(value).__name__
        if hasattr(value, "to_json"):
            value = value.to_json()
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        if not isinstance(value, dict):
            raise UserError(f"a {kind} record is needed, not a {where}; give a dict, the path of a file, or its object")
        value = records.loads(records.dumps(value))  # as its file would be read
    shapes.check(where, value, kind)
    return value


def lookup(data, *names):
    """The first value under any of `names` in nested dicts, in that order, shallow places first; or None."""
    for name in names:
        level = [data]
        while level:
            found = [d[name] for d in level if isinstance(d, dict) and d.get(name) is not None]
            if found:
                return found[0]
            level = [v for d in level if isinstance(d, dict) for v in d.values()]
    return None


@dataclass(frozen=True)
class TrainingRun:
    """One trained (or half-trained) model: its metrics lines, and its result once it finished."""

    metrics: list
    result: dict | None
    config: dict | None

    def validation(self):
        """(step, tokens, loss) of every validation, in order of step; the last line of a step counts."""
        points = {}
        for line in self.metrics:
            step, loss = line.get("step"), line.get("loss")
            if str(line.get("split", "")).startswith("val") and is_finite(step) and is_number(loss):
                tokens = line.get("tokens")
                points[step] = (step, tokens if is_finite(tokens) else step, float(loss))
        return [points[step] for step in sorted(points)]

    def final_loss(self):
        """Final validation loss of a finished run, else None."""
        return (self.result or {}).get("loss")


@dataclass(frozen=True)
class RunFolder:
    """Everything a run folder holds. `missing`: sentences on what is not there yet."""

    path: Path
    settings: dict
    work: dict | None
    schedules: dict
    arms: dict
    comparison: dict | None
    missing: list = field(default_factory=list)

    @property
    def baseline(self):
        """Name of the arm all others are compared with."""
        return (self.comparison or {}).get("baseline") or lookup(self.settings, "baseline") or "uniform"

    @property
    def loss_unit(self):
        """What losses are in: "nats per byte", or "nats per token" where a tokenizer made the corpus."""
        trainings = [one for runs in self.arms.values() for one in runs.values()]
        records = [record for one in trainings for record in (one.config, one.result)]
        stated = [(record or {}).get("corpus") for record in [*records, (self.comparison or {}).get("settings")]]
        return loss_unit(next((corpus for corpus in stated if isinstance(corpus, dict)), None))

    @property
    def arm_names(self):
        """Every arm with a trained model, a schedule or a row in the comparison; the baseline first."""
        compared = [arm.get("arm") for arm in (self.comparison or {}).get("arms") or []]
        asked = lookup(self.settings, "arms")
        asked = list(asked) if isinstance(asked, (list, dict)) else []
        found = [*compared, *(a for a in asked if isinstance(a, str)), *self.schedules, *self.arms]
        return sorted(dict.fromkeys(a for a in found if a), key=lambda name: name != self.baseline)

    @property
    def resume_command(self):
        """The command that makes whatever is missing: the run's own, with every setting it was begun with."""
        words = ["geowidth", "run", "--preset", str(lookup(self.settings, "preset") or "nano"), "--out", str(self.path)]
        spelled = lookup(self.settings, "spelled") or {}
        for name in ("corpus", "arms", "seeds", "steps", "tokens", "geometry", "statistic", "seed"):
            value = lookup(self.settings, name)
            if name == "arms" and isinstance(value, list):
                value = [spelled.get(arm, arm) for arm in value]
            if value is not None and value != "stdlib" and (name, value) != ("seed", 0):
                words += [f"--{name}", *(map(str, value) if isinstance(value, (list, tuple)) else [str(value)])]
        return shlex.join(words)

    def driver(self):
        """(statistic, geometry) of the signal that set the geometry arm's widths, or None."""
        if "geometry" not in self.schedules:
            return None
        settings = self.schedules["geometry"].get("settings")
        if lookup(settings, "mixture") is not None:  # several signals set them
            return None
        pair = lookup(settings, "statistic"), lookup(settings, "geometry")
        return pair if all(isinstance(word, str) for word in pair) else None


def _optional(path, kind):
    """The record at `path`, None without such a file; a UserError when its parts are not what its kind promises."""
    if not files.exists(path):
        return None
    record = records.read_json(path, kind=kind, schema=1)
    shapes.check(path, record, kind)
    return record


def _folder(path):
    """`path`, unless something else than a folder is there."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is not a folder; remove it and run geowidth run again")
    return path


def _training(folder, arm, seed):
    """The TrainingRun in arms/ARM/seed-S; a UserError when its files say that they are another's."""
    lines = records.read_json_lines(folder / "metrics.jsonl")
    shapes.check_lines(folder / "metrics.jsonl", lines)
    result = _optional(folder / "result.json", "geowidth.training_result")
    config = _optional(folder / "config.json", "geowidth.training")
    for name, record in (("result.json", result), ("config.json", config)):
        found = [(record or {}).get(key, own) for key, own in (("arm", arm), ("seed", seed))]
        if found != [arm, seed]:
            raise UserError(f"{folder / name} is of arm {found[0]} seed {found[1]}; put it into that arm's folder")
    return TrainingRun(lines, result, config)


def _arms(folder):
    arms: dict[str, dict[int, TrainingRun]] = {}
    for place in sorted(_folder(folder).glob("*/seed-*")):
        seed = re.fullmatch("seed-([0-9]{1,18})", place.name)
        if seed and place.is_dir():
            arms.setdefault(place.parent.name, {})[int(seed[1])] = _training(place, place.parent.name, int(seed[1]))
    return {name: dict(sorted(runs.items())) for name, runs in arms.items()}


def _schedules(folder):
    found = {path.stem: _optional(path, "geowidth.schedule") for path in sorted(_folder(folder).glob("*.json"))}
    known = [name for name in SCHEDULE_ORDER if name in found]
    return {name: found[name] for name in [*known, *(n for n in found if n not in known)]}


def read_run(folder):
    """Read whatever a run folder holds. UserError when it is no folder, holds nothing of a run, or a file is broken."""
    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"run folder {path} {what}; name the folder that geowidth run --out wrote")
    run = RunFolder(
        path=path,
        settings=_optional(path / "settings.json", "geowidth.run") or {},
        work=_optional(path / "work.json", "geowidth.work"),
        schedules=_schedules(path / "schedules"),
        arms=_arms(path / "arms"),
        comparison=_optional(path / "comparison.json", "geowidth.comparison"),
    )
    if not (run.settings or run.work or run.schedules or run.arms or run.comparison):
        raise UserError(
            f"{path} holds nothing of a run (no settings.json, work.json, schedules, arms or comparison.json); "
            "name the folder that geowidth run --out wrote"
        )
    run.missing.extend(_what_is_missing(run))
    return run


def _what_is_missing(run):
    notes = []
    if run.work is None:
        notes.append("work.json: the work profile has not been measured.")
    if not run.schedules:
        notes.append("schedules/: no widths have been allocated.")
    seeds = sorted({seed for runs in run.arms.values() for seed in runs})
    asked = lookup(run.settings, "seeds")
    if isinstance(asked, list):
        seeds = sorted({*seeds, *(s for s in asked if isinstance(s, int))})
    for name in run.arm_names:
        done = [seed for seed, one in run.arms.get(name, {}).items() if one.result]
        left = [str(seed) for seed in seeds if seed not in done]
        if left:
            notes.append(f"arms/{name}: seed{'s' * (len(left) > 1)} {', '.join(left)} not finished.")
    if not run.arm_names:
        notes.append("arms/: nothing has been trained.")
    if run.comparison is None:
        notes.append("comparison.json: the arms have not been compared.")
    return notes
