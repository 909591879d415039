"""The uniform model at its best: size, batch and learning rate at a fixed compute, before any widths are compared.

    python -m benchmarks.experiments.baseline calibrate [--seconds 40]     seconds a step of each shape: steps a cell
    python -m benchmarks.experiments.baseline train RUNS [--corpus TEXT] [--only NAME ...]
    python -m benchmarks.experiments.baseline show

`calibrate` times the training step of every shape, one thread, on a quiet machine, and writes the number of steps that
take so many core-seconds into baseline/calibration.json; shapes that come later are timed in turns with a known one.
`train` trains every cell with those steps (so a busy machine changes no result), from one seed that the studies do not
use, and adds the losses to baseline/cells.csv. The corpus is the standard library, or what --corpus names.
"""

import argparse
import csv
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from geowidth import records
from geowidth.models import ModelConfig
from geowidth.models.presets import Preset, RunSettings
from geowidth.models.training import TrainingSettings

FOLDER = Path(__file__).parent / "baseline"
KIND, SCHEMA = "geowidth.experiment_calibration", 1
SEED = 1000
CONTEXT, EVALUATIONS, EVALUATION_WINDOWS = 128, 6, 192


@dataclass(frozen=True)
class Shape:
    """A uniform model and its batch (sequences of 128 bytes a step)."""

    layers: int
    dimension: int
    heads: int
    width: int
    batch: int

    @property
    def name(self):
        return f"{self.layers}x{self.dimension}-w{self.width}-b{self.batch}"

    @property
    def model(self):
        return ModelConfig(256, self.layers, self.dimension, self.heads, (self.width,) * self.layers, CONTEXT)

    def training(self, steps, rate):
        batch = self.batch
        return TrainingSettings(
            steps, batch, batch, rate, evaluations=EVALUATIONS, evaluation_windows=EVALUATION_WINDOWS
        )


CELLS = (
    (Shape(8, 48, 2, 192, 4), (2.5e-3, 5e-3, 1e-2)),
    (Shape(8, 32, 2, 128, 4), (5e-3,)),
    (Shape(6, 48, 2, 192, 4), (5e-3, 1e-2)),
    (Shape(6, 48, 2, 128, 4), (5e-3, 1e-2)),
    (Shape(6, 64, 2, 256, 4), (5e-3,)),
    (Shape(8, 48, 2, 128, 4), (5e-3,)),
    (Shape(8, 64, 2, 256, 2), (3e-3,)),
    (Shape(8, 64, 2, 256, 4), (3e-3, 6e-3)),
    (Shape(8, 64, 2, 256, 8), (6e-3,)),
    (Shape(6, 96, 3, 384, 4), (4e-3,)),
)


def cells():
    """{name: (Shape, learning rate)} of the sweep."""
    return {f"{shape.name}-lr{rate:g}": (shape, rate) for shape, rates in CELLS for rate in rates}


def calibrate(seconds):
    """Write how many steps of every shape `seconds` core-seconds are; known shapes stay as they are."""
    path = FOLDER / "calibration.json"
    known = records.read_json(path, KIND, SCHEMA)["shapes"] if path.exists() else {}
    shapes = {shape.name: shape for shape, _ in CELLS}
    found = {name: known[name]["seconds_a_step"] for name in shapes if name in known}
    for name, shape in shapes.items():
        if name not in found:
            found[name] = step_seconds(shape) if not known else _beside(shape, shapes, found)
    steps = {name: {"seconds_a_step": s, "steps": round(seconds / s)} for name, s in found.items()}
    record = {"kind": KIND, "schema": SCHEMA, "core_seconds": seconds, "shapes": steps}
    records.write_json(path, record | {"environment": records.environment()})


def _beside(shape, shapes, found):
    """Seconds of a new shape on a machine that may be busy now: those of a known one, times their ratio in turns."""
    name = next(iter(found))
    turns = [(step_seconds(shape, 1), step_seconds(shapes[name], 1)) for _ in range(7)]
    return found[name] * sorted(new / old for new, old in turns)[3]


def step_seconds(shape, rounds=7, calls=4):
    """CPU seconds of one training step of `shape`, one thread: the median over `rounds`."""
    import torch

    from benchmarks.tapering import training_step
    from geowidth.models.transformer import TaperedTransformer
    from geowidth.ops.threads import torch_threads

    with torch_threads(1):
        model = TaperedTransformer(shape.model, SEED)
        step = training_step(model, torch.randint(0, 256, (shape.batch, CONTEXT + 1)))
        times = []
        for _ in range(rounds):
            start = time.process_time()
            for _ in range(calls):
                step()
            times.append((time.process_time() - start) / calls)
    return sorted(times)[rounds // 2]


def train(runs, corpus, only, processes):
    """Train the cells that are named (default: all) and write their losses into cells.csv."""
    from geowidth.train import TrainJob, train_many

    chosen = {name: cell for name, cell in cells().items() if not only or name in only}
    steps = records.read_json(FOLDER / "calibration.json", KIND, SCHEMA)["shapes"]
    label = "stdlib" if corpus == "stdlib" else Path(corpus).name
    jobs = []
    for name, (shape, rate) in chosen.items():
        settings = shape.training(steps[shape.name]["steps"], rate)
        preset = Preset(name, shape.model, settings, RunSettings((SEED,), ("uniform",), 512, 8))
        jobs.append(TrainJob(Path(runs) / label / name, None, SEED, "uniform", preset, settings.steps, corpus))
    results = train_many(jobs, processes)
    write_cells(label, dict(zip(chosen, results, strict=True)))


COLUMNS = ("corpus", "cell", "layers", "dimension", "width", "batch", "steps", "learning_rate", "tokens", "parameters")
COLUMNS += ("flops", "loss", "digest")


def write_cells(label, results):
    """Add {cell: result} to cells.csv; cells of the same name are replaced."""
    rows = {(row["corpus"], row["cell"]): row for row in read_cells()}
    for name, result in results.items():
        model, training = result["model"], result["training"]
        values = (label, name, model["layers"], model["dimension"], model["widths"][0], training["batch"])
        values += (result["steps"], training["learning_rate"], result["tokens"], result["parameters"], result["flops"])
        values += (round(result["loss"], 6), result["corpus"]["digest"][:16])
        rows[label, name] = dict(zip(COLUMNS, values, strict=True))
    lines = [",".join(COLUMNS)] + [",".join(str(row[name]) for name in COLUMNS) for row in rows.values()]
    records.write_text(FOLDER / "cells.csv", "\n".join(lines) + "\n")


def read_cells(folder=FOLDER):
    """The rows of cells.csv as dicts of text, none where there is no such file."""
    path = folder / "cells.csv"
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def show():
    """Print the cells of each corpus, best first."""
    for row in sorted(read_cells(), key=lambda row: (row["corpus"], float(row["loss"]))):
        print(f"{row['corpus']:8} {row['cell']:28} {int(row['tokens']):9,} tokens  {float(row['loss']):.4f}")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.baseline", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("calibrate").add_argument("--seconds", type=float, default=40.0)
    trains = commands.add_parser("train")
    trains.add_argument("runs", type=Path)
    trains.add_argument("--corpus", default="stdlib")
    trains.add_argument("--only", nargs="+", choices=list(cells()))
    trains.add_argument("--processes", type=int)
    commands.add_parser("show")
    arguments = parser.parse_args(argv)
    if arguments.command == "calibrate":
        calibrate(arguments.seconds)
    elif arguments.command == "train":
        train(arguments.runs, arguments.corpus, arguments.only, arguments.processes)
    show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
