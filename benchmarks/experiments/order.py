"""Does the order of the widths matter once their direction is held? Reads the committed losses of the studies.

    python -m benchmarks.experiments.order            prints the tables and writes them into order/

A schedule from measured work differs from uniform widths in three things: the spread of its widths, their direction
(wide early or wide late), and which layer has which. Its controls have the same widths: `sorted` from widest to
narrowest, `reversed`, and `permuted` in a random order that was chosen for having nearly the same direction. So
geometry against each of them, over the same seeds, asks for the order; against `permuted` with the direction held.
Three families of comparisons, over all corpora, each corrected by Holm's rule:

    order      every measured schedule against its own controls
    pooled     the same with the signals averaged and the corpora side by side: one comparison a control, more pairs
    uniform    every arm against uniform widths

p is that of the paired t test (differences taken as normal), corrected p Holm's; the exact sign-flip p stands beside
it, which with 5 seeds cannot be below 1/16. A comparison of arms with equal widths and equal start is left out and
named: there is nothing to compare. arms.csv has the widths, their direction and the mean loss of each arm,
over-training.csv its difference from uniform at every validation.
"""

import csv
import io
import math
import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.experiments.study import LOSSES, NAMES, ROOT, SCHEDULES, direction
from geowidth import records
from geowidth.allocate.arms import Arm
from geowidth.train.corrections import holm, paired_t_p
from geowidth.train.evidence import paired_difference

LEVEL = 0.05
CONTROLS = ("sorted", "reversed", "permuted")
SIGNIFICANT = 6  # digits in the tables


@dataclass(frozen=True)
class Study:
    """One corpus. losses: {arm: {seed: {step: nats per byte}}}. widths: {arm: (widths, initial scales or None)}."""

    name: str
    losses: dict
    widths: dict

    @classmethod
    def read(cls, folder):
        """The Study of a folder that `benchmarks.experiments.study collect` wrote."""
        losses, widths = {}, {}
        with open(folder / LOSSES, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                steps = losses.setdefault(row["arm"], {}).setdefault(int(row["seed"]), {})
                steps[int(row["step"])] = float(row["loss"])
        schedules = records.read_json(folder / SCHEDULES)
        for arm in losses:
            widths[arm] = schedules[arm]["widths"], schedules[arm]["details"].get("initial_scales")
        return cls(folder.name, losses, widths)

    @property
    def steps(self):
        """The steps of all validations; they are the same in every cell."""
        return sorted(next(iter(next(iter(self.losses.values())).values())))

    def pairs(self, arm, against, step=None):
        """Loss of `arm` minus loss of `against` for each seed, (seeds,), after `step` (None: the last)."""
        step = self.steps[-1] if step is None else step
        ours, theirs = self.losses[arm], self.losses[against]
        return np.array([ours[seed][step] - theirs[seed][step] for seed in sorted(ours)])


@dataclass(frozen=True)
class Contrast:
    """One comparison of a family: arm minus against on one corpus, (seeds,) differences in nats per byte."""

    corpus: str
    arm: str
    against: str
    pairs: np.ndarray


def order_family(studies):
    """(contrasts, left out) of every measured schedule and each of its controls."""
    return _contrasts(studies, lambda study: [pair for arm in study.losses for pair in _with_controls(study, arm)])


def pooled_family(studies):
    """(contrasts, nothing left out) of measured schedules and each kind of control: pairs of every corpus and seed."""
    pairs = {}
    for study in studies:
        by_control = {}
        for one in order_family([study])[0]:
            by_control.setdefault(Arm.parse(one.against).control, []).append(one.pairs)
        for control, found in by_control.items():
            pairs.setdefault(control, []).append(np.mean(found, axis=0))
    return [Contrast("all", "measured", control, np.concatenate(p)) for control, p in pairs.items()], []


def uniform_family(studies):
    """(contrasts, left out) of every arm and uniform widths."""
    return _contrasts(studies, lambda study: [(arm, "uniform") for arm in study.losses if arm != "uniform"])


def _with_controls(study, arm):
    parsed = Arm.parse(arm)
    if parsed.control is not None or not parsed.needs_work:
        return []
    own = [other for other in study.losses if other != arm and _is_control(Arm.parse(other), parsed)]
    return [(arm, control) for control in own]


def _is_control(other, of):
    options = {name: v for name, v in other.options.items() if name not in ("seed", "rising")}
    return other.control in CONTROLS and other.schedule == of.schedule and options == of.options


def _contrasts(studies, pairs_of):
    found, left_out = [], []
    for study in studies:
        for arm, against in pairs_of(study):
            if study.widths[arm] == study.widths[against]:
                left_out.append(f"{study.name}: {arm} and {against} have the same widths")
            else:
                found.append(Contrast(study.name, arm, against, study.pairs(arm, against)))
    return found, left_out


COLUMNS = ("corpus", "arm", "against", "seeds", "mean", "standard_error", "low", "high", "t_p", "holm_p", "sign_flip_p")
COLUMNS += ("seeds_needed",)
EFFECT = 0.01  # nats a byte: the difference for which seeds_needed is told


def judge(contrasts):
    """One dict of COLUMNS for each contrast of a family.

    low, high: the 95 % t interval of one comparison alone. seeds_needed: with which that comparison alone would see a
    true difference of EFFECT in four runs of five.
    """
    ps = [paired_t_p(one.pairs) for one in contrasts]
    rows = []
    for one, p, corrected in zip(contrasts, ps, holm(ps), strict=True):
        d = paired_difference(one.pairs, 1 - LEVEL, EFFECT)
        numbers = (d.mean, d.standard_error, *d.interval, p, corrected, d.sign_flip_p, d.seeds_needed)
        rows.append(dict(zip(COLUMNS, (one.corpus, one.arm, one.against, d.seeds, *numbers), strict=True)))
    return rows


def over_training(studies):
    """corpus, arm, step, mean difference from uniform and its standard error, at every validation."""
    rows = []
    for study in studies:
        for arm in study.losses:
            for step in study.steps if arm != "uniform" else ():
                pairs = study.pairs(arm, "uniform", step)
                error = np.std(pairs, ddof=1) / math.sqrt(len(pairs))
                rows.append({"corpus": study.name, "arm": arm, "step": step, "mean": np.mean(pairs), "error": error})
    return rows


def arms(studies):
    """corpus, arm, direction (see study.direction), mean last loss in nats a byte, widths, of every arm."""
    rows = []
    for study in studies:
        for arm, by_seed in study.losses.items():
            widths, last = study.widths[arm][0], [steps[study.steps[-1]] for steps in by_seed.values()]
            row = {"corpus": study.name, "arm": arm, "direction": direction(widths), "loss": float(np.mean(last))}
            rows.append(row | {"widths": " ".join(map(str, widths))})
    return rows


def sentence(name, rows, left_out):
    """What a family says, in plain words."""
    apart = [row for row in rows if row["holm_p"] <= LEVEL]
    alone = sum(row["t_p"] <= LEVEL for row in rows)
    words = [
        f"Family {name}: {len(rows)} comparisons. {alone} have p at most {LEVEL} alone ({LEVEL * len(rows):.1f} would "
        f"by chance if nothing mattered), {len(apart)} after Holm's correction."
    ]
    for row in apart:
        side = "below" if row["mean"] < 0 else "above"
        size = f"{abs(row['mean']):.4f} nats a byte {side} {row['against']}"
        words.append(f"{row['corpus']}: {row['arm']} is {size}, corrected p {row['holm_p']:.2g}.")
    if not apart:
        reach = max(max(abs(row["low"]), abs(row["high"])) for row in rows)
        words.append(f"No interval reaches beyond {reach:.4f} nats a byte: larger differences are not to be expected.")
        needed = sorted(row["seeds_needed"] or math.inf for row in rows)[len(rows) // 2]
        words.append(f"To see one of {EFFECT:g} alone would take {needed} seeds (median of the comparisons).")
    smallest = 2.0 ** (1 - min(row["seeds"] for row in rows))
    if smallest > LEVEL:
        words.append(
            f"The sign-flip p cannot be below {smallest:g} here, so the t test's normal differences are relied on."
        )
    return " ".join([*words, *(f"Left out: {text}." for text in left_out)])


def table(rows):
    """Rows as CSV text; numbers with 6 significant digits."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.{SIGNIFICANT}g}" if isinstance(v, float) else v for k, v in row.items()})
    return out.getvalue()


def headline(judged):
    """The table of the README: every arm's difference from uniform on each corpus. judged: rows of that family."""
    corpora = list(dict.fromkeys(row["corpus"] for row in judged))
    cells = {(row["corpus"], spelled(row["arm"])): row for row in judged}
    lines = [f"| arm | {' | '.join(corpora)} |", f"|---|{'---|' * len(corpora)}"]
    for arm in dict.fromkeys(spelled(row["arm"]) for row in judged):
        found = [cells.get((corpus, arm)) for corpus in corpora]
        words = ["same widths" if row is None else _cell(row) for row in found]
        lines.append(f"| {arm} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _cell(row):
    mean = f"{row['mean']:+.4f}".replace("-", "\N{MINUS SIGN}")
    return f"{mean} \N{PLUS-MINUS SIGN} {row['standard_error']:.4f}, p {row['holm_p']:.2g}"


def spelled(arm):
    """An arm's text for readers: 'sorted geometry, gw x spherical'."""
    parsed, words = Arm.parse(arm), arm.partition(":")[0]
    if parsed.needs_work:
        options = {"statistic": "topology", "geometry": "hyperbolic", **parsed.options}
        words = f"{parsed.control or ''} geometry, {options['statistic']} x {options['geometry']}".strip()
    return words + (f", initial scale {parsed.options['initial_scale']}" if "initial_scale" in parsed.options else "")


def results(studies):
    """{file name: text} of everything that is written into order/."""
    families = {"order": order_family, "pooled": pooled_family, "uniform": uniform_family}
    families = {name: family(studies) for name, family in families.items()}
    judged = {name: judge(contrasts) for name, (contrasts, _) in families.items()}
    found = {f"{name}.csv": table(rows) for name, rows in judged.items()}
    found["arms.csv"] = table(arms(studies))
    found["over-training.csv"] = table(over_training(studies))
    found["headline.md"] = headline(judged["uniform"])
    lines = [sentence(name, rows, families[name][1]) for name, rows in judged.items()]
    return found | {"conclusions.txt": "\n".join(lines) + "\n"}


def committed_studies(root=ROOT):
    """The Studies whose results are committed."""
    return [Study.read(root / name) for name in NAMES if (root / name / LOSSES).exists()]


def main():
    for name, text in results(committed_studies()).items():
        records.write_text(ROOT / "order" / name, text)
        print(f"{name}\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
