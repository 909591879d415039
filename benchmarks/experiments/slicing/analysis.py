"""What the cells say: paired differences, their errors, corrections for the number of arms, rank correlations.

A difference is that of two arms on the same windows of the same text. Windows of one draw share its calibration text,
scores and signals, so a mean has two errors: over windows, as if all were independent given the draws, and over
clusters, one mean for each text and draw. Tests are paired t tests over clusters, corrected by Holm's rule within a
family, with the exact sign-flip p beside them:

    uniform   every arm against uniform widths
    order     widths by a signal against the same widths sorted, permuted and reversed
    rivals    widths by a signal against a taper and against what looks at losses or neurons
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.experiments.order import Contrast, holm, judge
from benchmarks.experiments.slicing.design import ARMS, CONTROLLED, CONTROLS, MAIN, SIGNALS, TEXTS, UNIFORM
from geowidth import records
from geowidth.diagnose.association import partial_spearman

CELLS, GROUND = "cells.jsonl", "ground.jsonl"
RIVALS = ("cosine", "linear", "sensitivity", "threshold", "curves", "combined", "FLAP", "Minitron")
PERMUTATIONS, HALVINGS = 19_999, 100
LEVEL = 0.05


@dataclass(frozen=True)
class Study:
    """cells: {(text, draw, kept, arm): row}. ground: {(text, draw): what its cells share}."""

    cells: dict
    ground: dict

    @classmethod
    def read(cls, folder):
        """The Study of the lines in a folder; a file that is not there yet has none."""
        rows = records.read_json_lines(folder / CELLS)
        ground = {(row["text"], row["draw"]): row for row in records.read_json_lines(folder / GROUND)}
        return cls({(row["text"], row["draw"], row["kept"], row["arm"]): row for row in rows}, ground)

    @property
    def shares(self):
        """Kept shares of which there is a cell, largest first."""
        return sorted({key[2] for key in self.cells}, reverse=True)

    def sensitivity(self, text):
        """What the loss of each window grows by when one layer alone keeps half its neurons, (layers, windows) of all
        draws in which that was measured; None where it was in none."""
        known = [row.get("sensitivity") for (name, _), row in sorted(self.ground.items()) if name == text]
        known = [values for values in known if values]
        return np.concatenate(known, axis=1) if known else None

    def clusters(self, kept, *arms, texts=TEXTS):
        """The (text, draw) pairs in which all these arms were run."""
        known = {key[:2] for key in self.cells if key[0] in texts}
        return sorted(c for c in known if all((*c, kept, arm) in self.cells for arm in arms))

    def losses(self, cluster, kept, arm):
        """Loss of every window, (windows,), nats per token."""
        return np.array(self.cells[(*cluster, kept, arm)]["losses"])

    def differences(self, kept, arm, against=UNIFORM.name, texts=TEXTS):
        """Loss of `arm` minus that of `against`: one (windows,) array a cluster in which both were run."""
        found = self.clusters(kept, arm, against, texts=texts)
        return [self.losses(c, kept, arm) - self.losses(c, kept, against) for c in found]


@dataclass(frozen=True)
class Summary:
    """mean: over clusters. over_windows, over_clusters: its standard errors, None where there are fewer than two."""

    mean: float
    over_windows: float | None
    over_clusters: float | None
    clusters: int
    windows: int


def summarise(differences):
    """The Summary of one array a cluster, one cluster or more. The error over windows is that of the mean of clusters
    whose windows vary independently about their cluster's mean."""
    means = np.array([d.mean() for d in differences])
    variances = [d.var(ddof=1) / len(d) for d in differences if len(d) > 1]
    over_windows = math.sqrt(sum(variances)) / len(means) if len(variances) == len(means) else None
    over_clusters = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None
    return Summary(float(means.mean()), over_windows, over_clusters, len(means), sum(map(len, differences)))


def contrast(study, kept, arm, against, texts=TEXTS):
    """The Contrast of two arms over clusters, or None where fewer than two clusters have both or all are alike."""
    pairs = np.array([d.mean() for d in study.differences(kept, arm, against, texts)])
    return Contrast(f"{kept:g}", arm, against, pairs) if len(pairs) > 1 and np.any(pairs) else None


def families(study, shares=MAIN):
    """{family: rows of order.judge}, the corpus of a row being the kept share."""
    asked = {
        "uniform": [(arm, UNIFORM.name) for arm in ARMS if arm != UNIFORM.name],
        "order": [(signal, f"{control} {signal}") for signal in CONTROLLED for control in CONTROLS],
        "rivals": [(signal, rival) for signal in CONTROLLED for rival in RIVALS],
    }
    found = {}
    for name, pairs in asked.items():
        contrasts = [contrast(study, kept, *pair) for kept in shares for pair in pairs]
        found[name] = judge([one for one in contrasts if one is not None])
    return found


def spearman_p(x, y, permutations=PERMUTATIONS, seed=0):
    """(rho, two-sided permutation p) of Spearman's correlation of x and y, (n,) each; (None, None) without spread."""
    left, right = (stats.rankdata(v) - (len(x) + 1) / 2 for v in (x, y))
    scale = math.sqrt((left @ left) * (right @ right))
    if scale == 0:
        return None, None
    generator = np.random.default_rng(seed)
    draws = generator.permuted(np.tile(right, (permutations, 1)), axis=1) @ left
    hits = int((np.abs(draws) >= abs(left @ right) - 1e-9 * scale).sum())
    return float(left @ right / scale), (hits + 1) / (permutations + 1)


def correlations(study, text):
    """One row for each of the nine signals: its rank correlation over layers with measured sensitivity.

    A signal is the mean over the draws of the text. p: of permutations of the layers, which takes layers as
    exchangeable; holm_p: corrected for nine. given_depth, given_depth_p: the same once the layer's number is partialled
    out, as neighbouring layers are alike in both.
    """
    ground = [row for (name, _), row in sorted(study.ground.items()) if name == text]
    windows = study.sensitivity(text)
    if windows is None:
        return []
    sensitivity = windows.mean(1)
    depth, rows = np.arange(len(sensitivity)), []
    for signal in SIGNALS:
        values = np.mean([row["signals"][signal] for row in ground], axis=0)
        rho, p = spearman_p(values, sensitivity)
        alone, alone_p = partial_spearman(values, sensitivity, depth)
        rows.append({"text": text, "signal": signal, "draws": len(ground), "rho": rho, "p": p})
        rows[-1] |= {"given_depth": alone, "given_depth_p": alone_p}
    for name in ("p", "given_depth_p"):
        corrected = holm([1.0 if row[name] is None else row[name] for row in rows])
        for row, value in zip(rows, corrected, strict=True):
            row[f"holm_{name}"] = value
    return rows


def depth_correlation(study, text):
    """(rho, p) of measured sensitivity with the layer's number: what a plain taper takes for granted."""
    sensitivity = study.sensitivity(text).mean(1)
    return spearman_p(np.arange(len(sensitivity)), sensitivity)


def reliability(study, text):
    """Rank correlation of measured sensitivity with another measurement on as many windows, foretold from the mean
    correlation r of its halves by 2 r / (1 + r) (Spearman and Brown, 1910): no signal can be expected to agree better
    with it. None for fewer than two windows."""
    windows = study.sensitivity(text)
    count = windows.shape[1]
    if count < 2:
        return None
    generator, found = np.random.default_rng(0), []
    for _ in range(HALVINGS):
        order = generator.permutation(count)
        halves = (windows[:, part].mean(1) for part in (order[: count // 2], order[count // 2 :]))
        found.append(stats.spearmanr(*halves).statistic)
    r = float(np.mean(found))
    return 2 * r / (1 + r)


def verdicts(found):
    """What may be said, in plain sentences. found: what `families` gave."""
    lines = []
    for name, rows in found.items():
        if not rows:
            continue
        alone, apart = sum(r["t_p"] <= LEVEL for r in rows), [r for r in rows if r["holm_p"] <= LEVEL]
        lines.append(
            f"Family {name}: {len(rows)} comparisons, {alone} with p at most {LEVEL} alone ({LEVEL * len(rows):.1f} "
            f"would by chance if nothing mattered), {len(apart)} after Holm's correction."
        )
        for row in apart:
            side = "below" if row["mean"] < 0 else "above"
            lines.append(
                f"{float(row['corpus']):.0%} kept: {row['arm']} is {abs(row['mean']):.3f} nats a token {side} "
                f"{row['against']} (corrected p {row['holm_p']:.2g}, {row['seeds']} pairs)."
            )
    return [*lines, *(f"{one}" for one in order_verdict(found.get("order", [])))]


def order_verdict(rows):
    """One sentence for each signal and share: whether its order beats the same widths sorted."""
    for row in rows:
        if row["against"].startswith("sorted"):
            low, high = row["low"], row["high"]
            if row["holm_p"] <= LEVEL:
                words = f"the order matters: it is {'better' if row['mean'] < 0 else 'worse'} than sorted"
            else:
                words = "sorted widths do about as well: the order has not been shown to matter"
            yield f"{float(row['corpus']):.0%} kept, {row['arm']}: {words} ({low:+.3f} to {high:+.3f})."
