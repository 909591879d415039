"""Schedules and their controls over paired seeds on one corpus: a run whose cells are trained seed by seed.

    python -m benchmarks.experiments.study train NAME RUNS [--corpus FOLDER] [--seeds 0 1 2]
    python -m benchmarks.experiments.study match NAME RUNS
    python -m benchmarks.experiments.study collect NAME RUNS

NAME is a folder beside this file with a run.toml: `stdlib` (the corpus of that name) or `bible` (the folder that
`benchmarks.experiments.prose` writes, named by --corpus). `train` does what

    geowidth run --config benchmarks/experiments/NAME/run.toml --out RUNS/NAME [--corpus FOLDER]

does and ends with that very run, which finds every training done. It only orders the cells differently, the arms of
measured widths beside the others: whenever it is stopped, the seeds so far are whole. `collect` copies what a reader
needs into NAME: settings, work.json, schedules, comparison.json, report.html and losses.csv with every validation loss.
"""

import argparse
import csv
import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from geowidth import records
from geowidth.allocate.schedules.permuted import permute
from geowidth.chain import allocate_arm, measure_reference, resolve, run_chain, train_arms
from geowidth.models.preset_files import read_preset

ROOT = Path(__file__).parent
NAMES = ("stdlib", "bible")
COPIED = ("settings.json", "work.json", "comparison.json", "report.html")
SCHEDULES = "schedules.json"  # {arm: schedule}, one file: names of arms hold colons, which not every file system takes
MATCHED_SEEDS = 1000
LOSSES, LOSS_COLUMNS = "losses.csv", ("arm", "seed", "step", "tokens", "loss")


def chain_of(name, corpus=None, seeds=None):
    """The Chain of NAME/run.toml. corpus: the folder of the prose."""
    given = {key: value for key, value in (("corpus", corpus), ("seeds", seeds)) if value is not None}
    return resolve(read_preset(ROOT / name / "run.toml"), **given)


def train(chain, folder, processes=None):
    """Train every cell, the first seeds of all arms first; then the run itself, which compares and reports."""
    uniform = [arm for arm in chain.arms if arm.text == "uniform"]
    train_arms(replace(chain, seeds=chain.seeds[:2]), folder, uniform, processes)
    measure_reference(chain, folder)
    train_arms(chain, folder, chain.arms, processes)
    return run_chain(chain, folder, processes=processes)


def collect(run, folder):
    """Copy the results of a finished run folder into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(run / name, folder / name)
    schedules = {path.stem: records.read_json(path) for path in sorted((run / "schedules").glob("*.json"))}
    records.write_json(folder / SCHEDULES, schedules)
    records.write_text(folder / LOSSES, losses_csv(run))


def direction(widths):
    """From -1 (all width in the first layer) over 0 (as much early as late) to 1 (all in the last)."""
    place = np.linspace(-1, 1, len(widths))
    return round(float(place @ np.asarray(widths) / np.sum(widths)), 9) + 0.0


def matched_seed(chain, arm, work):
    """(seed, widths) of the permutation of a measured arm that keeps its direction best and moves most layers."""
    own = np.asarray(allocate_arm(chain, arm, work).widths)
    found = []
    for seed in range(MATCHED_SEEDS):
        widths = permute(own, SimpleNamespace(seed=seed))
        if 2 * np.count_nonzero(widths != own) > len(own):
            found.append((abs(direction(widths) - direction(own)), seed, tuple(map(int, widths))))
    return min(found)[1:]


def match(chain, folder):
    """Print the direction of every measured schedule and the permutation that has nearly the same."""
    for arm in chain.arms:
        if arm.needs_work and arm.control is None:
            own = allocate_arm(chain, arm, folder / "work.json").widths
            seed, widths = matched_seed(chain, arm, folder / "work.json")
            print(f"{arm.text}: widths {own}, direction {direction(own):+.4f}")
            print(f"    permuted with seed={seed}: widths {widths}, direction {direction(widths):+.4f}")


def losses_csv(run):
    """LOSS_COLUMNS, a line for each validation of each training; losses in nats per byte, every digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(LOSS_COLUMNS)
    for arm in records.read_json(run / "settings.json")["settings"]["arms"]:
        for place in sorted((run / "arms" / arm).glob("seed-*"), key=lambda place: int(place.name[5:])):
            for line in records.read_json_lines(place / "metrics.jsonl"):
                if line["split"] == "validation":
                    writer.writerow((arm, int(place.name[5:]), line["step"], line["tokens"], repr(line["loss"])))
    return out.getvalue()


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.study", description=__doc__)
    parser.add_argument("command", choices=("train", "match", "collect"))
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--corpus")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--processes", type=int)
    given = parser.parse_args(argv)
    chain = chain_of(given.name, given.corpus, given.seeds)
    if given.command == "train":
        print(train(chain, given.runs / given.name, given.processes))
    elif given.command == "match":
        match(chain, given.runs / given.name)
    else:
        collect(given.runs / given.name, ROOT / given.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
