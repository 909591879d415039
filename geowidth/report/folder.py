"""What the report reads: the files of a run folder, whichever exist, and what is missing with the way to get it."""

import re
import shlex
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path

from geowidth import records
from geowidth.errors import UserError
from geowidth.report.numbers import is_finite, is_number

_MAKERS = {
    "geowidth.work": "geowidth measure",
    "geowidth.schedule": "geowidth allocate",
    "geowidth.comparison": "geowidth compare",
}
SCHEDULE_ORDER = ("uniform", "cosine", "geometry", "reversed")


def as_record(value, kind):
    """A record as a dict, from a dict, from an object with `to_json()`, or read from the path of a file."""
    if isinstance(value, (str, Path)):
        return records.read_json(value, kind=kind, schema=1)
    if hasattr(value, "to_json"):
        value = value.to_json()
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if not isinstance(value, dict):
        raise UserError(f"{type(value).__name__} is no {kind} record; give a dict, the path of a file, or its object")
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
        """Final validation loss of a finished run in nats per byte, else None."""
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
        for name in ("corpus", "arms", "seeds", "steps", "tokens", "geometry", "statistic"):
            value = lookup(self.settings, name)
            if value is not None and value != "stdlib":
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


# What the parts of each record must be: an answer of False stops the report with one line instead of half a page.
_SHAPES = {
    "geowidth.work": lambda r: all(
        isinstance(signals, dict) and all(isinstance(values, list) for values in signals.values())
        for signals in [*r["work"].values(), r.get("dimension") or {}]
    ),
    "geowidth.schedule": lambda r: all(map(is_finite, r["widths"])) and isinstance(r.get("budget") or {}, dict),
    "geowidth.comparison": lambda r: all(
        isinstance(arm["arm"], str) and all(map(str.isdecimal, arm.get("losses") or {})) for arm in r["arms"]
    ),
}


def _optional(path, kind):
    """The record at `path`, None without such a file; a UserError when its parts are not what its kind promises."""
    if not path.is_file():
        return None
    record = records.read_json(path, kind=kind, schema=1)
    try:
        good = _SHAPES[kind](record)
    except (AttributeError, KeyError, TypeError):
        good = False
    if not good:
        raise UserError(f"{path} is not a whole {kind} record; delete it and run {_MAKERS[kind]} again")
    return record


def _training(folder):
    result = folder / "result.json"
    config = folder / "config.json"
    return TrainingRun(
        metrics=[line for line in records.read_json_lines(folder / "metrics.jsonl") if isinstance(line, dict)],
        result=records.read_json(result) if result.is_file() else None,
        config=records.read_json(config) if config.is_file() else None,
    )


def _arms(folder):
    arms = {}
    for place in sorted(folder.glob("*/seed-*")):
        seed = re.fullmatch(r"seed-(\d+)", place.name)
        if seed and place.is_dir():
            arms.setdefault(place.parent.name, {})[int(seed[1])] = _training(place)
    return {name: dict(sorted(runs.items())) for name, runs in arms.items()}


def _schedules(folder):
    found = {path.stem: _optional(path, "geowidth.schedule") for path in sorted(folder.glob("*.json"))}
    known = [name for name in SCHEDULE_ORDER if name in found]
    return {name: found[name] for name in [*known, *(n for n in found if n not in known)]}


def read_run(folder):
    """Read whatever a run folder holds. UserError when it is no folder, holds nothing of a run, or a file is broken."""
    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"run folder {path} {what}; name the folder that geowidth run --out wrote")
    settings = path / "settings.json"
    run = RunFolder(
        path=path,
        settings=records.read_json(settings) if settings.is_file() else {},
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
