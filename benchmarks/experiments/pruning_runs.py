"""The runs behind the tables of pruning: which models lose which blocks, judged on which text. See `pruning.py`.

Each run ends in one record: what `geowidth prune --curve` writes, and for the small models the importance of their
blocks and the loss of every set of blocks that could go. Whatever is finished is found again; an interrupted curve goes
on where it was.
"""

import shutil
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from geowidth import records

FOLDER = Path(__file__).parent / "pruning"
KIND, SCHEMA = "geowidth.experiment_pruning", 1
PRESET, CORPUS = FOLDER / "mini.toml", "stdlib"  # of the trainings
UNTRAINED = ("similarity", "taylor", "magnitude", "random")


@dataclass(frozen=True)
class Run:
    """A model pruned by several rules. blocks: as many go at most. seed, seeds, windows, context: of geowidth prune.

    trained: the seed of the small model's training, None for SmolLM2.
    """

    name: str
    corpus: str
    blocks: int
    rules: tuple[str, ...]
    seed: int
    seeds: int
    windows: int
    context: int
    trained: int | None = None


MINIS = tuple(Run(f"mini-{s}", "stdlib", 5, ("ledger", *UNTRAINED), 100 * s, 8, 64, 128, s) for s in range(5))
LARGE = (
    Run("smollm2-stdlib", "stdlib", 10, UNTRAINED, 0, 5, 12, 96),
    Run("smollm2-bible", "bible", 6, UNTRAINED, 0, 3, 12, 96),
)


def run(runs, bible=None, only=()):
    """Make the records of all runs (or of `only` these names) in the folder `runs`, and copy them beside this file.

    bible: the folder that benchmarks.experiments.prose wrote; without it, runs on that text are left out.
    """
    places = {"stdlib": "stdlib"} | ({} if bible is None else {"bible": bible})
    for one in (*MINIS, *LARGE):
        if one.corpus in places and (not only or one.name in only):
            path = Path(runs) / f"{one.name}.json"
            if not (path.exists() and records.read_json(path, KIND, SCHEMA)["run"] == records.to_jsonable(asdict(one))):
                records.write_json(path, made(one, Path(runs), places[one.corpus]))
            (FOLDER / "records").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, FOLDER / "records" / path.name)


def made(one, runs, corpus):
    """The record of a run."""
    from geowidth.cascade import prune

    model = "smollm2" if one.trained is None else trained(one, runs)
    given = {"seed": one.seed, "corpus": corpus, "windows": one.windows, "context": one.context}
    curve = prune(model, one.blocks, one.rules, seeds=one.seeds, curve=runs / f"{one.name}-curve.json", **given)
    record = {"kind": KIND, "schema": SCHEMA, "run": asdict(one), **_told(curve)}
    if one.trained is not None:
        record["every_set"] = every_set(model, curve["windows"], **given)
        record["importance"] = importance(model, **given)
    return record


def _told(curve):
    """Of a record of `geowidth prune --curve` what the tables need. It names no place of this machine."""
    found = {name: curve[name] for name in ("layers", "rankings", "stability", "windows", "environment")}
    return found | {"text": {**curve["text"], "source": Path(curve["text"]["source"]).name}}


def trained(one, runs):
    """The folder of a small model trained with a ledger, made where it is not there."""
    from geowidth import cli

    folder = runs / one.name
    done = cli.main(
        [
            "train",
            "--preset",
            str(PRESET),
            "--corpus",
            CORPUS,
            "--seed",
            str(one.trained),
            "--ledger",
            "--out",
            str(folder),
        ]
    )
    if done:
        raise SystemExit(done)
    return folder


def every_set(model, known, *, seed, corpus, windows, context):
    """{blocks that went, as "1 3": mean loss} of all sets of one block or more, but that of all.

    known: losses of the windows of sets that were judged on the same text.
    """
    from geowidth.cascade import residual_blocks
    from geowidth.cascade.curves import Judge
    from geowidth.cascade.held_out import draw_held_out
    from geowidth.measure.opening import open_model
    from geowidth.text.corpus import load_corpus

    opened = open_model(model, causal=True)
    text = draw_held_out(opened, load_corpus(corpus), "test", windows=windows, context=context, seed=seed)
    judge = Judge(residual_blocks(opened.model), text)
    blocks = range(len(judge.blocks))
    sets = {" ".join(map(str, removed)): removed for k in blocks[1:] for removed in combinations(blocks, k)}
    return {name: float(np.mean(known.get(name) or judge.without(removed))) for name, removed in sets.items()}


def importance(model, **given):
    """Importance of every block with its standard error, and its correlation with the gradient shares."""
    from geowidth.cascade import compare_importance

    found = compare_importance(model, **given)
    return {name: found[name] for name in ("importance", "standard_errors", "shares", "correlations", "steps")}
