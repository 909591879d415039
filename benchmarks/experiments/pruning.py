"""Which blocks can go? Losses over blocks removed by five rules, and how far each rule agrees with itself.

    python -m benchmarks.experiments.pruning                    prints the tables and writes them into pruning/
    python -m benchmarks.experiments.pruning --run RUNS [--bible FOLDER]      makes the records first

Two kinds of models: `mini`, the best uniform model of the baseline sweep (6 blocks, 0.18 million parameters), trained
with a ledger from five seeds, and SmolLM2-135M (30 blocks) on two texts, where no training can be looked at and so no
ledger. Rules look at windows of the validation split, losses are of windows of the test split, in nats a token.

    curves.csv       loss above the whole model's by every rule, and that minus what random orders lose: of `mini` over
                     trainings, each with windows of its own; of SmolLM2 over windows. What a random order loses is
                     known for `mini`, where every set of blocks was judged; for SmolLM2 it is the mean of those drawn.
                     p is that of the paired t test, holm_p Holm's over all rules and numbers of blocks of that model.
                     better: the share of all sets of as many blocks that lose less, known for `mini` alone
    rivals.csv       the ledger against each rule that needs no training
    stability.csv    rank correlations between draws of windows (or of chance) in one model, and between trainings
    importance.csv   correlation of each rule's scores with the importance of the blocks: a row a training, their mean
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.experiments.order import LEVEL, table
from benchmarks.experiments.pruning_runs import FOLDER, KIND, LARGE, MINIS, SCHEMA, run
from geowidth import records
from geowidth.cascade import correlate, rank_stability
from geowidth.train.corrections import holm, paired_t_p
from geowidth.train.evidence import paired_difference

RANDOM = "random"
ROUNDING = 1e-12  # nats: losses of the same blocks, added up in another order, are no further apart


@dataclass(frozen=True)
class Model:
    """A model, or trainings of one, without blocks. records: one of each training, with the same rules."""

    name: str
    records: tuple

    @property
    def blocks(self):
        return self.records[0]["run"]["blocks"]

    @property
    def rules(self):
        return list(self.records[0]["rankings"])

    def losses(self, record, rule, k):
        """(draws, windows) losses without the first k blocks of each ranking of a rule."""
        names = (" ".join(map(str, sorted(one["order"][:k]))) for one in record["rankings"][rule])
        return np.array([record["windows"][name] for name in names])

    def lost(self, rule, k, against=None):
        """Loss without k blocks, means over draws, minus that of `against` (a rule; None: of the whole model).

        (trainings,) where there are several, else (windows,).
        """
        found = [self.losses(record, rule, k).mean(0) - self._other(record, against, k) for record in self.records]
        pairs = found[0] if len(found) == 1 else np.mean(found, axis=1)
        return np.where(np.abs(pairs) < ROUNDING, 0.0, pairs)

    def _other(self, record, against, k):
        """Losses of what a rule is held against: (windows,), or their mean where no more is known."""
        if against is None:
            return np.array(record["windows"][""])
        if against == RANDOM and "every_set" in record:
            return np.mean(self.every(record, k))
        return self.losses(record, against, k).mean(0)

    def every(self, record, k):
        """Losses of all sets of k blocks, mean over windows each; None where they are not known."""
        if "every_set" not in record:
            return None
        return np.array([loss for name, loss in record["every_set"].items() if len(name.split()) == k])

    def extremes(self, rule, k):
        """Smallest and largest loss above the whole model's, over trainings and draws."""
        found = [self.losses(r, rule, k).mean(1) - np.mean(r["windows"][""]) for r in self.records]
        return min(map(np.min, found)), max(map(np.max, found))

    def better(self, rule, k):
        """Mean share of all sets of k blocks that lose less than those of the rule; None where they are not known."""
        shares = []
        for record in self.records:
            every = self.every(record, k)
            if every is None:
                return None
            shares += [np.mean(every < own - ROUNDING) for own in self.losses(record, rule, k).mean(1)]
        return float(np.mean(shares))

    def best(self, k):
        """(trainings,) loss of the best set of k blocks above the whole model's; None where not all are known."""
        found = [self.every(record, k) for record in self.records]
        if found[0] is None:
            return None
        whole = [np.mean(record["windows"][""]) for record in self.records]
        return np.array([every.min() for every in found]) - whole


def committed_models(folder=FOLDER / "records"):
    """The Models whose records are committed."""
    read = {path.stem: records.read_json(path, KIND, SCHEMA) for path in sorted(folder.glob("*.json"))}
    minis = tuple(read[one.name] for one in MINIS if one.name in read)
    found = [Model("mini", minis)] if minis else []
    return found + [Model(one.name, (read[one.name],)) for one in LARGE if one.name in read]


def curves(model):
    """A row for each rule and number of blocks. low, high: the 95 % t interval of one comparison alone."""
    rows, family = [], []
    for rule in model.rules:
        for k in range(1, model.blocks + 1):
            above = paired_difference(model.lost(rule, k), 1 - LEVEL)
            least, most = model.extremes(rule, k)
            row = {"model": model.name, "rule": rule, "removed": k, "above": above.mean}
            row |= {
                "standard_error": above.standard_error,
                "least": least,
                "most": most,
                "better": model.better(rule, k),
            }
            row |= dict.fromkeys(("from_random", "low", "high", "t_p", "holm_p"))
            rows.append(row)
            if rule != RANDOM:
                family.append((row, model.lost(rule, k, RANDOM)))
    _judge(family)
    return rows


def rivals(model):
    """The ledger minus every rule that needs no training, as `curves` does it against random orders."""
    if "ledger" not in model.rules:
        return []
    others = [rule for rule in model.rules if rule not in ("ledger", RANDOM)]
    rows = [{"model": model.name, "against": rule, "removed": k} for rule in others for k in range(1, model.blocks + 1)]
    _judge([(row, model.lost("ledger", row["removed"], row["against"])) for row in rows], "mean")
    return rows


def _judge(family, name="from_random"):
    """Fill in the rows of [(row, pairs)]: mean, interval and p of each, corrected for all of them."""
    ps = [paired_t_p(pairs) for _, pairs in family]
    for (row, pairs), p, corrected in zip(family, ps, holm(ps), strict=True):
        found = paired_difference(pairs, 1 - LEVEL)
        row |= {name: found.mean, "low": found.interval[0], "high": found.interval[1], "t_p": p, "holm_p": corrected}


def stability(model):
    """A row for each rule and what is drawn: windows (or chance) in one model, means over trainings; trainings."""
    rows = []
    for rule in model.rules:
        own = [record["stability"][rule] for record in model.records if rule in record["stability"]]
        if own:
            rows.append({"model": model.name, "rule": rule, "over": "chance" if rule == RANDOM else "windows"})
            rows[-1] |= {name: _mean([one[name] for one in own]) for name in own[0]}
        if len(model.records) > 1 and rule != RANDOM:
            firsts = [record["rankings"][rule][0] for record in model.records]
            found = rank_stability([first["scores"] for first in firsts]).to_json()
            rows.append({"model": model.name, "rule": rule, "over": "trainings"} | found)
            rows[-1]["orders"] = len({tuple(first["order"]) for first in firsts})
    return rows


def _mean(values):
    return None if None in values else float(np.mean(values))


def importance(model):
    """Correlations of the scores of each rule (first draw) with the importance of the blocks, a row a training."""
    rows = []
    for rule in model.rules if "importance" in model.records[0] else ():
        own = []
        for record in model.records:
            scores, wanted = record["rankings"][rule][0]["scores"], record["importance"]["importance"]
            found = correlate(scores, wanted)
            row = {"model": model.name, "rule": rule, "training": record["run"]["trained"]}
            for name in ("spearman", "pearson"):
                low, high = found[name].interval or (None, None)
                row |= {name: found[name].value, f"{name}_low": low, f"{name}_high": high}
            own.append(row)
        rows += [*own, {"model": model.name, "rule": rule, "training": "mean", **_mean_of(own)}]
    return rows


def _mean_of(rows):
    """Means over trainings with their t intervals, cut at 1."""
    found = {}
    for name in ("spearman", "pearson"):
        mean = paired_difference([row[name] for row in rows], 1 - LEVEL)
        low, high = np.clip(mean.interval, -1, 1)
        found |= {name: mean.mean, f"{name}_low": low, f"{name}_high": high}
    return found


SHOWN = {"mini": (1, 2, 3, 4), "smollm2-stdlib": (2, 5, 10), "smollm2-bible": (2, 5)}
TITLES = {"mini": "small model", "smollm2-stdlib": "SmolLM2, code", "smollm2-bible": "SmolLM2, prose"}


def headline(models, rows):
    """The README's table: loss above the whole model's without so many blocks, with the standard error."""
    cells = {(row["model"], row["rule"], row["removed"]): row for row in rows}
    shown = [(model, k) for model in models for k in SHOWN[model.name]]
    heads = [f"{TITLES[m.name]}: {k} of {m.records[0]['layers']}" for m, k in shown]
    lines = [f"| rule | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for rule in models[0].rules:
        found = [cells.get((model.name, rule, k)) for model, k in shown]
        lines.append(f"| {rule} | {' | '.join('no training' if row is None else _cell(row) for row in found)} |")
    best = [None if model.best(k) is None else paired_difference(model.best(k)) for model, k in shown]
    words = ["not known" if one is None else f"{one.mean:+.2f} ± {one.standard_error:.2f}" for one in best]
    return "\n".join([*lines, f"| best of all sets | {' | '.join(words)} |"]) + "\n"


def _cell(row):
    return f"{row['above']:+.2f} ± {row['standard_error']:.2f}"


def agreement(rows):
    """A table for readers of `stability`: Spearman and Kendall, mean and least."""
    lines = ["| model | rule | between | Spearman (least) | Kendall (least) | orders |", "|---|---|---|---|---|---|"]
    for row in rows:
        pair = [f"{row[name]:.2f} ({row[f'least_{name}']:.2f})" for name in ("spearman", "kendall")]
        between = f"{row['draws']:.0f} {'orders' if row['over'] == 'chance' else row['over']}"
        between = between.replace(" windows", " draws of windows")
        orders = f"{row['orders']:.3g}"
        lines.append(f"| {TITLES[row['model']]} | {row['rule']} | {between} | {' | '.join(pair)} | {orders} |")
    return "\n".join(lines) + "\n"


def results(models):
    """{file name: text} of everything that is written into pruning/."""
    from benchmarks.experiments.pruning_picture import picture

    made = {step.__name__: [row for model in models for row in step(model)] for step in (curves, rivals, stability)}
    made["importance"] = [row for model in models for row in importance(model)]
    found = {f"{name}.csv": table(rows) for name, rows in made.items() if rows}
    found |= {"headline.md": headline(models, made["curves"]), "stability.md": agreement(made["stability"])}
    return found | {"curves.svg": picture(models)}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.pruning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run", type=Path, metavar="RUNS", help="folder of trainings and curves; goes on where it was")
    parser.add_argument("--bible", type=Path, metavar="FOLDER", help="what benchmarks.experiments.prose wrote")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in (*MINIS, *LARGE)], default=())
    arguments = parser.parse_args(argv)
    if arguments.run is None and (arguments.bible or arguments.only):
        parser.error("--bible and --only are for --run; give --run RUNS too")
    if arguments.bible is None and "smollm2-bible" in arguments.only:
        parser.error("smollm2-bible needs --bible FOLDER")
    if arguments.run is not None:
        run(arguments.run, arguments.bible, arguments.only)
    for name, text in results(committed_models()).items():
        records.write_text(FOLDER / name, text)
        print(f"{name}\n{text}" if not name.endswith(".svg") else name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
