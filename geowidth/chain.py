"""The whole chain on one model size: train, measure, allocate, train the arms, compare, report. See `geowidth run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth import records
from geowidth.allocate.arms import Arm, parse_arms
from geowidth.errors import UserError, choose, seed_number, whole
from geowidth.files import PathLike
from geowidth.models.presets import Preset, preset_named
from geowidth.progress import duration, tell

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from geowidth.artifacts.schedule import Schedule
    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.train.cells import PlannedCell

KIND, SCHEMA = "geowidth.run", 1
LATER = {"seed": 0, "spelled": {}}  # settings that files of earlier versions lack, and what they had in their place


@dataclass(frozen=True)
class Chain:
    """Everything a run does. `resolve` makes one with the preset's defaults filled in and every name checked.

    seeds   paired seeds of the trainings, one model of every arm each
    seed    of the drawing of tokens, and of the arms' permutations where an arm has none of its own
    """

    preset: Preset
    corpus: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    steps: int
    tokens: int
    geometry: str
    statistic: str
    seed: int = 0

    @property
    def reference(self) -> str:
        """Folder of the model that is measured, seen from the run folder."""
        return arm_folder("uniform", self.seeds[0])

    @property
    def signal(self) -> dict[str, str]:
        """What schedules read from the work profile where an arm does not say it."""
        return {"geometry": self.geometry, "statistic": self.statistic}

    def signals(self) -> dict[str, Any]:
        """({"geometries"}, {"statistics"}), tuples: those that are always measured, then what else an arm reads."""
        from geowidth.measure import MeasureSettings

        usual = MeasureSettings()
        read = [pair for arm in self.arms for pair in sorted(arm.signals(self.signal))]
        geometries = dict.fromkeys([*usual.geometries, *(geometry for _, geometry in read)])
        statistics = dict.fromkeys([*usual.statistics, *(statistic for statistic, _ in read)])
        return {"geometries": tuple(geometries), "statistics": tuple(statistics)}

    def to_json(self) -> dict[str, Any]:
        names = [arm.name for arm in self.arms]
        spelled = {arm.name: arm.text for arm in self.arms if arm.name != arm.text}
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        settings |= {"preset": self.preset.name, "arms": names, "spelled": spelled, "reference": self.reference}
        return {"kind": KIND, "schema": SCHEMA, "settings": settings}


def resolve(
    preset: str | Preset = "nano",
    corpus: PathLike = "stdlib",
    arms: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    geometry: str = "hyperbolic",
    statistic: str = "topology",
    seed: int = 0,
) -> Chain:
    """A Chain with the preset's defaults filled in; raises UserError for anything that cannot run.

    arms: texts, see geowidth.allocate.arms. geometry, statistic: the signal that arms with measured widths read.
    """
    from geowidth.geometry import GEOMETRIES
    from geowidth.measure import STATISTICS

    chosen = preset_named(preset)
    if len(set(chosen.model.widths)) > 1:
        raise UserError(
            f"preset {chosen.name!r} has different widths by layer; a run compares schedules at the budget of one width"
        )
    chosen.model.refuse_repeats("a run, which measures FFNs,")
    arms = parse_arms(arms or chosen.run.arms)
    if "uniform" not in [arm.text for arm in arms]:
        named = " ".join(arm.text for arm in arms)
        raise UserError(f"arms are {named}; uniform must be among them: it is the reference")
    seeds = tuple(seed_number("a seed", seed) for seed in (chosen.run.seeds if seeds is None else seeds))
    if not seeds or len(set(seeds)) != len(seeds):
        raise UserError(f"seeds are {' '.join(map(str, seeds))}; name at least one, each once")
    steps = whole("steps", chosen.training.steps if steps is None else steps, 1)
    tokens = whole("tokens", chosen.run.measured_tokens if tokens is None else tokens, 4)
    choose("geometry", geometry, list(GEOMETRIES))
    choose("statistic", statistic, list(STATISTICS))
    found = Chain(
        chosen, str(corpus), arms, seeds, steps, tokens, geometry, statistic, whole("seed", seed, 0, 2**31 - 1)
    )
    check_arms(found)
    return found


def check_arms(chain: Chain) -> None:
    """Refuse an arm whose options its schedule cannot take, before anything is trained: each is allocated once, those
    that need measured work with a made-up profile in which all layers do the same."""
    from geowidth.measure import MeasureSettings

    measured = MeasureSettings(**chain.signals())  # refuses signals that cannot be measured
    for arm in chain.arms:
        try:
            found = allocate_arm(chain, arm, _level_profile(chain, measured) if arm.needs_work else None)
            chain.preset.with_schedule(found, "geowidth run")
        except UserError as error:
            raise UserError(f"arm {arm.text}: {error}") from error


def _level_profile(chain, measured):
    """A work profile in which every signal is 1 in every layer, of the preset's uniform model."""
    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.ops.dimension.operation import ESTIMATORS

    model = chain.preset.model
    flat = [1.0] * model.layers
    work = {name: dict.fromkeys(measured.statistics_in(name), flat) for name in measured.geometries}
    dimension = {name: [8.0] * model.layers for name in ESTIMATORS}
    return WorkProfile(work, dimension, model.widths, model.dimension, model.projections, [], {}, {})


def run_chain(
    chain: Chain,
    folder: PathLike,
    *,
    processes: int | None = None,
    on: str | Executor | None = None,
    device: str | None = None,
) -> Path:
    """Do everything `chain` says that is not done yet in `folder`; returns the path of report.html.

    processes, on: how many trainings run side by side, and where; see geowidth.train.train_many. device: of each
    training (None: the cpu).
    """
    from geowidth.train.executors import opened
    from geowidth.train.world import training_device

    check(chain, processes)
    with opened(on, Path(folder)) as executor:
        if executor is None:
            training_device(device or "cpu")  # that of workers elsewhere is theirs to check
        return _run(chain, Path(folder), {"processes": processes, "on": executor, "device": device})


def _run(chain, folder, where):
    from geowidth.report import table, write_report
    from geowidth.train.compare import COMPARISON_FILE, compare_folders

    record = chain.to_json() | {"environment": records.environment()}
    records.claim_folder(folder / "settings.json", record, "a run", LATER)
    started = time.monotonic()
    early = [arm for arm in chain.arms if not arm.needs_work]
    late = [arm for arm in chain.arms if arm.needs_work]
    stages = 5 if late else 4
    tell(f"[1/{stages}] train {_named(early)}: {len(early) * len(chain.seeds)} models of {chain.steps} steps")
    train_arms(chain, folder, early, **where)
    signals = f"{_count(chain)} signals of every FFN on {chain.tokens} held-out tokens"
    tell(f"[2/{stages}] measure {chain.reference}: {signals}")
    measure_reference(chain, folder)
    if late:
        tell(f"[3/{stages}] allocate by {chain.statistic} x {chain.geometry}, then train {_named(late)}")
        train_arms(chain, folder, late, **where)
    tell(f"[{stages - 1}/{stages}] compare seed by seed")
    record = compare_folders([folder / arm_folder(arm.name, seed) for arm in chain.arms for seed in chain.seeds])
    records.write_json(folder / COMPARISON_FILE, record)
    tell(f"[{stages}/{stages}] report")
    page = write_report(folder)
    tell(f"done in {duration(time.monotonic() - started)}")
    print(table(record))
    return page


def check(chain: Chain, processes: int | None) -> None:
    """Refuse what only the corpus and this machine can tell, before anything is written."""
    from geowidth.measure import check_enough_text
    from geowidth.text.corpus import load_corpus
    from geowidth.train.preparation import check_corpus
    from geowidth.train.processes import process_count

    process_count(processes)
    text, model = load_corpus(chain.corpus), chain.preset.model
    check_corpus(text, model, chain.preset.training)
    check_enough_text(text, model.context, chain.tokens)


def planned(chain: Chain, folder: Path) -> list[PlannedCell]:
    """The cells of the run, begun or not; a UserError for a folder that holds another run. Nothing is written."""
    from geowidth.train.cells import planned_cells

    if (folder / "settings.json").exists():
        records.claim_folder(folder / "settings.json", chain.to_json(), "a run", LATER)
    model, training = chain.preset.model, chain.preset.with_training(steps=chain.steps)
    return planned_cells(folder, [arm.name for arm in chain.arms], chain.seeds, model, training)


def arm_folder(arm: str, seed: int) -> str:
    """Training folder of one arm and seed, seen from the run folder."""
    return f"arms/{arm}/seed-{seed}"


def _named(arms):
    return ", ".join(arm.text for arm in arms)


def _count(chain):
    """How many signals are measured, in a word where it is the usual number."""
    from geowidth.measure import MeasureSettings

    measured = MeasureSettings(**chain.signals())
    count = sum(len(measured.statistics_in(name)) for name in measured.geometries)
    return "nine" if count == 9 else count


def train_arms(
    chain: Chain,
    folder: Path,
    arms: Sequence[Arm],
    processes: int | None = None,
    on: str | Executor | None = None,
    device: str | None = None,
) -> None:
    """Write the schedules of `arms` and train every seed of them; finished trainings are left as they are."""
    from geowidth.train import TrainJob, train_many

    jobs = []
    for seed in chain.seeds:  # seed by seed, so that an interrupted run has whole pairs
        for arm in arms:
            schedule = schedule_of(chain, folder, arm)
            preset = chain.preset.with_schedule(schedule, "geowidth run")
            out = folder / arm_folder(arm.name, seed)
            job = TrainJob(out, None, seed, arm.name, preset, chain.steps, chain.corpus)
            jobs.append(replace(job, initial_scales=schedule.initial_scales, device=device or "cpu"))
    train_many(jobs, processes, on=on, label="train")


def schedule_of(chain: Chain, folder: Path, arm: Arm) -> Schedule:
    """The schedule of one arm: read from the run folder, or made and written there."""
    from geowidth.allocate import Schedule

    path = folder / "schedules" / f"{arm.name}.json"
    if path.exists():
        schedule = Schedule.read(path)
    else:
        schedule = allocate_arm(chain, arm, folder / "work.json" if arm.needs_work else None)
    chain.preset.with_schedule(schedule, "geowidth run")  # refused before it is written
    if not path.exists():
        schedule.write(path)
    return schedule


def allocate_arm(chain: Chain, arm: Arm, work: WorkProfile | PathLike | None) -> Schedule:
    """The Schedule of one arm at the preset's budget. work: a WorkProfile, the path of one, or None."""
    from geowidth.allocate import allocate

    preset = chain.preset
    return allocate(
        arm.schedule,
        control=arm.control,
        base_width=preset.base_width,
        layers=preset.model.layers,
        model_dimension=preset.model.dimension,
        projections=preset.model.projections,
        quantum=preset.run.multiple,
        work=work,
        **{"seed": chain.seed, **arm.settings(chain.signal)},
    )


def measure_reference(chain: Chain, folder: Path) -> None:
    """Measure the uniform model of the first seed, unless that is done."""
    from geowidth.measure import MeasureSettings, measure

    path = folder / "work.json"
    if not path.exists():
        settings = MeasureSettings(**chain.signals(), seed=chain.seed)
        measure(folder / chain.reference, corpus=chain.corpus, tokens=chain.tokens, out=path, settings=settings)
