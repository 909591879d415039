"""The whole chain on one model size: train, measure, allocate, train the arms, compare, report. See `geowidth run`."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from geowidth import records
from geowidth.errors import UserError, choose
from geowidth.progress import duration, tell

KIND, SCHEMA = "geowidth.run", 1


@dataclass(frozen=True)
class Arm:
    """One way to spend the budget: a schedule, perhaps changed by a control, made from the reference's work or not."""

    schedule: str
    control: str | None = None
    needs_work: bool = False


# The arms a run can compare. Those that need no work profile train first, beside the reference.
ARMS = {
    "uniform": Arm("uniform"),
    "cosine": Arm("cosine"),
    "geometry": Arm("geometry", needs_work=True),
    "reversed": Arm("geometry", control="reversed", needs_work=True),
    "permuted": Arm("geometry", control="permuted", needs_work=True),
    "inverse": Arm("geometry", control="inverse", needs_work=True),
    "reversed-cosine": Arm("cosine", control="reversed"),
}


@dataclass(frozen=True)
class RunPlan:
    """Everything a run does. `resolve` makes one with the preset's defaults filled in and every name checked."""

    preset: str
    corpus: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    tokens: int
    geometry: str
    statistic: str

    @property
    def reference(self):
        """Folder of the model that is measured, seen from the run folder."""
        return arm_folder("uniform", self.seeds[0])

    def to_json(self):
        return {"kind": KIND, "schema": SCHEMA, "settings": {**asdict(self), "reference": self.reference}}


def resolve(
    preset="nano",
    corpus="stdlib",
    arms=None,
    seeds=None,
    steps=None,
    tokens=None,
    geometry="hyperbolic",
    statistic="topology",
):
    """A RunPlan with the preset's defaults filled in; raises UserError for anything that cannot run."""
    from geowidth.geometry import GEOMETRIES
    from geowidth.measure import DEFAULT_STATISTICS
    from geowidth.models.presets import preset_named

    chosen = preset_named(preset)
    arms = tuple(arms or chosen.run.arms)
    for arm in arms:
        choose("arm", arm, list(ARMS))
    if "uniform" not in arms:
        raise UserError(f"arms are {' '.join(arms)}; uniform must be among them: it is the reference")
    seeds = tuple(chosen.run.seeds if seeds is None else seeds)
    for what, values in (("arms", arms), ("seeds", seeds)):
        if len(set(values)) != len(values):
            raise UserError(f"{what} are {' '.join(map(str, values))}; each may stand there once")
    if any(seed < 0 for seed in seeds):
        raise UserError(f"seeds are {' '.join(map(str, seeds))}; allowed: whole numbers from 0 up")
    steps = chosen.training.steps if steps is None else steps
    tokens = chosen.run.measured_tokens if tokens is None else tokens
    if steps < 1 or tokens < 4:
        raise UserError(f"steps is {steps} and tokens is {tokens}; at least 1 step and 4 tokens are needed")
    choose("geometry", geometry, list(GEOMETRIES))
    choose("statistic", statistic, DEFAULT_STATISTICS)
    return RunPlan(chosen.name, str(corpus), arms, seeds, steps, tokens, geometry, statistic)


def run_chain(plan, folder, *, processes=None):
    """Do everything `plan` says that is not done yet in `folder`; returns the path of report.html."""
    from geowidth.report import table, write_report
    from geowidth.train.compare import COMPARISON_FILE, compare_folders

    folder = Path(folder)
    check(plan, processes)
    record = plan.to_json() | {"environment": records.environment()}
    records.claim_folder(folder / "settings.json", record, "a run")
    started = time.monotonic()
    early = [arm for arm in plan.arms if not ARMS[arm].needs_work]
    late = [arm for arm in plan.arms if ARMS[arm].needs_work]
    stages = 5 if late else 4
    tell(f"[1/{stages}] train {', '.join(early)}: {len(early) * len(plan.seeds)} models of {plan.steps} steps")
    train_arms(plan, folder, early, processes)
    tell(f"[2/{stages}] measure {plan.reference}: nine signals of every FFN on {plan.tokens} held-out tokens")
    measure_reference(plan, folder)
    if late:
        tell(f"[3/{stages}] allocate by {plan.statistic} x {plan.geometry}, then train {', '.join(late)}")
        train_arms(plan, folder, late, processes)
    tell(f"[{stages - 1}/{stages}] compare seed by seed")
    record = compare_folders([folder / arm_folder(arm, seed) for arm in plan.arms for seed in plan.seeds])
    records.write_json(folder / COMPARISON_FILE, record)
    tell(f"[{stages}/{stages}] report")
    page = write_report(folder)
    tell(f"done in {duration(time.monotonic() - started)}")
    print(table(record))
    return page


def check(plan, processes):
    """Refuse what only the corpus and this machine can tell, before anything is written."""
    from geowidth.measure import check_enough_text
    from geowidth.models.presets import preset_named
    from geowidth.text.corpus import load_corpus, windows
    from geowidth.train.parallel import process_count

    process_count(processes)
    text, context = load_corpus(plan.corpus), preset_named(plan.preset).model.context
    for split in ("train", "validation"):
        windows(text.split(split), context, 1)
    check_enough_text(text, context, plan.tokens)


def arm_folder(arm, seed):
    """Training folder of one arm and seed, seen from the run folder."""
    return f"arms/{arm}/seed-{seed}"


def train_arms(plan, folder, arms, processes):
    """Write the schedules of `arms` and train every seed of them; finished trainings are left as they are."""
    from geowidth.train import TrainJob, train_many

    jobs = []
    for seed in plan.seeds:  # seed by seed, so that an interrupted run has whole pairs
        for arm in arms:
            widths = schedule_of(plan, folder, arm).widths
            out = folder / arm_folder(arm, seed)
            jobs.append(TrainJob(out, widths, seed, arm, plan.preset, plan.steps, plan.corpus))
    train_many(jobs, processes, label="train")


def schedule_of(plan, folder, arm):
    """The schedule of one arm: read from the run folder, or made and written there."""
    from geowidth.allocate import Schedule, allocate
    from geowidth.models.presets import preset_named

    path = folder / "schedules" / f"{arm}.json"
    preset, rule = preset_named(plan.preset), ARMS[arm]
    if path.exists():
        schedule = Schedule.read(path)
        preset.widths_of(schedule, "geowidth run")
        return schedule
    options = {"geometry": plan.geometry, "statistic": plan.statistic} if rule.schedule == "geometry" else {}
    schedule = allocate(
        rule.schedule,
        control=rule.control,
        base_width=preset.base_width,
        layers=preset.model.layers,
        model_dimension=preset.model.dimension,
        projections=3,
        quantum=preset.run.multiple,
        work=folder / "work.json" if rule.needs_work else None,
        **options,
    )
    schedule.write(path)
    return schedule


def measure_reference(plan, folder):
    """Measure the uniform model of the first seed, unless that is done."""
    from geowidth.measure import measure

    path = folder / "work.json"
    if not path.exists():
        measure(folder / plan.reference, corpus=plan.corpus, tokens=plan.tokens, out=path)
