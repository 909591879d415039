"""The tables of the study in Markdown."""

from dataclasses import replace

from benchmarks.experiments.slicing.analysis import (
    correlations,
    depth_correlation,
    families,
    reliability,
    summarise,
    verdicts,
)
from benchmarks.experiments.slicing.design import (
    ARMS,
    CHECKED,
    CHECKS,
    CONTROLLED,
    CONTROLS,
    FEWER,
    MAIN,
    TEXTS,
    UNIFORM,
)

MINUS, PLUS_MINUS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}"


def signed(value, decimals=3):
    return f"{value:+.{decimals}f}".replace("-", MINUS)


def short(p):
    return f"{p:.2g}" if p >= 0.001 else "< .001"


def grid(head, rows):
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def cell(summary, p=None):
    """A Summary as text: mean, error over clusters (over windows alone), p."""
    if summary is None:
        return ""
    errors = [f"{e:.3f}" for e in (summary.over_clusters, summary.over_windows) if e is not None]
    text = f"{signed(summary.mean)} {PLUS_MINUS} {errors[0]}" if errors else signed(summary.mean)
    text += f" ({errors[1]})" if len(errors) > 1 else ""
    return text + (f", p {short(p)}" if p is not None else "")


def found(study, kept, arm, against=UNIFORM.name, texts=TEXTS):
    """The Summary of a difference, or None where no cluster has both arms."""
    differences = study.differences(kept, arm, against, texts)
    return summarise(differences) if differences else None


def arms_table(study):
    """Every arm minus uniform at the main shares, both texts together, with Holm's p; the number of clusters."""
    judged = {(row["corpus"], row["arm"]): row["holm_p"] for row in families(study)["uniform"]}
    rows = []
    for arm in ARMS:
        summaries = [found(study, kept, arm) for kept in MAIN]
        if arm != UNIFORM.name and any(summaries):
            ps = [judged.get((f"{kept:g}", arm)) for kept in MAIN]
            counts = "/".join(str(s.clusters if s else 0) for s in summaries)
            rows.append([arm, *(cell(s, p) for s, p in zip(summaries, ps, strict=True)), counts])
    return grid(["minus uniform, nats a token", *(f"{kept:.0%} kept" for kept in MAIN), "pairs"], rows)


# The rows of the README, in its words.
SHOWN = {
    "cosine": "cosine taper",
    "linear": "linear taper",
    "shift/spherical": "spherical shift",
    "sorted shift/spherical": "the same widths, widest first",
    "reversed shift/spherical": "the same widths, last layer first",
    "topology/spherical": "spherical topology",
    "sorted topology/spherical": "the same widths, widest first",
    "reversed topology/spherical": "the same widths, last layer first",
    "topology/raw": "raw topology",
    "sensitivity": "measured sensitivity",
    "curves": "measured loss curves, solved",
    "combined": "a little sensitivity, and signals",
    "threshold": "one threshold over all layers",
    "FLAP": "FLAP: its threshold, its bias",
    "Minitron": "uniform, Minitron's neurons, not corrected",
    "depth and width": "uniform, half of it as whole blocks",
    "depth": "whole blocks alone",
}


def headline(study):
    """The table of the README: some arms minus uniform at the main shares, with their number of pairs."""
    rows = []
    for arm, words in SHOWN.items():
        summaries = [found(study, kept, arm) for kept in MAIN]
        counts = " and ".join(str(s.clusters if s else 0) for s in summaries)
        rows.append([words, *(cell(s and replace(s, over_windows=None)) for s in summaries), counts])
    return grid(["widths by", *(f"{kept:.0%} kept" for kept in MAIN), "pairs"], rows)


def texts_table(study):
    """The same for each text alone."""
    columns = [(text, kept) for text in TEXTS for kept in MAIN]
    rows = []
    for arm in ARMS:
        summaries = [found(study, kept, arm, texts=(text,)) for text, kept in columns]
        if arm != UNIFORM.name and any(summaries):
            rows.append([arm, *map(cell, summaries)])
    return grid(["minus uniform", *(f"{text}, {kept:.0%}" for text, kept in columns)], rows)


def shares_table(study):
    """The arms that were run at every share."""
    shares = study.shares
    arms = [arm for arm in FEWER if arm != UNIFORM.name]
    rows = [[arm, *(cell(found(study, kept, arm)) for kept in shares)] for arm in arms]
    return grid(["minus uniform", *(f"{kept:.0%}" for kept in shares)], rows)


def checks_table(study):
    """Differences from uniform as the study takes them, and what the same cells give without its savings."""
    rows = []
    for name in CHECKED:
        for check in (arm for arm in CHECKS if arm.endswith(f", {name}")):
            arm, other = check.removesuffix(f", {name}"), f"{UNIFORM.name}, {name}"
            for kept in MAIN if arm != UNIFORM.name else ():
                clusters = study.clusters(kept, arm, UNIFORM.name, check, other)
                if clusters:
                    pairs = ((arm, UNIFORM.name), (check, other))
                    ours, theirs = (
                        [study.losses(c, kept, a) - study.losses(c, kept, b) for c in clusters] for a, b in pairs
                    )
                    gap = [one - two for one, two in zip(theirs, ours, strict=True)]
                    rows.append([f"{arm}, {kept:.0%} kept", name, *(cell(summarise(d)) for d in (ours, theirs, gap))])
    return grid(["minus uniform", "instead", "in the study", "so", "change"], rows)


def order_table(study):
    """Widths by a signal minus the same widths in another order."""
    rows = []
    judged = {(row["corpus"], row["arm"], row["against"]): row for row in families(study)["order"]}
    for signal in CONTROLLED:
        for control in CONTROLS:
            against = f"{control} {signal}"
            line = [f"{signal} minus {control}"]
            for kept in MAIN:
                row = judged.get((f"{kept:g}", signal, against))
                line.append(cell(found(study, kept, signal, against), row and row["holm_p"]))
            rows.append(line)
    return grid(["nats a token", *(f"{kept:.0%} kept" for kept in MAIN)], rows)


def correlation_table(study):
    """Rank correlation of each signal with measured sensitivity, text by text."""
    by_text = {text: correlations(study, text) for text in TEXTS}
    known = [text for text in TEXTS if by_text[text]]
    rows = [
        [lines[0]["signal"], *(part for line in lines for part in _correlation(line))]
        for lines in zip(*(by_text[text] for text in known), strict=True)
    ]
    head = [f"{text}: {w}" for text in known for w in ("rho", "p", "Holm", "rho given depth", "Holm")]
    text = grid(["signal", *head], rows) if rows else ""
    for one in known:
        rho, p = depth_correlation(study, one)
        text += f"\n{one}: the layer's number alone has {signed(rho, 2)} (p {short(p)})"
        again = reliability(study, one)
        text += (
            "" if again is None else f", a second measurement of the sensitivity itself would have {signed(again, 2)}"
        )
        text += ".\n"
    return text


def _correlation(line):
    """The cells of one signal on one text."""
    numbers = [line[name] for name in ("rho", "p", "holm_p", "given_depth", "holm_given_depth_p")]
    forms = (lambda v: signed(v, 2), short, short, lambda v: signed(v, 2), short)
    return ["" if v is None else form(v) for v, form in zip(numbers, forms, strict=True)]


def losses_table(study):
    """Mean losses of the whole model and of uniform widths."""
    rows = []
    for text in TEXTS:
        draws = [row for (name, _), row in study.ground.items() if name == text]
        whole = [sum(row["whole"]) / len(row["whole"]) for row in draws]
        line = [text, str(len(draws)), f"{sum(whole) / len(whole):.3f}" if whole else ""]
        for kept in study.shares:
            where = study.clusters(kept, UNIFORM.name, texts=(text,))
            means = [study.losses(cluster, kept, UNIFORM.name).mean() for cluster in where]
            line.append(f"{sum(means) / len(means):.3f}" if means else "")
        rows.append(line)
    return grid(["text", "draws", "whole model", *(f"uniform, {kept:.0%} kept" for kept in study.shares)], rows)


def everything(study):
    """All tables as one text."""
    parts = [
        ("Arms against uniform widths", arms_table(study)),
        ("Order or multiset", order_table(study)),
        ("Every share", shares_table(study)),
        ("Each text alone", texts_table(study)),
        ("Signals and measured sensitivity", correlation_table(study)),
        ("Losses, nats a token", losses_table(study)),
        ("What the study saves", checks_table(study)),
        ("What may be said", "".join(f"- {line}\n" for line in verdicts(families(study)))),
    ]
    return "# Slicing SmolLM2-135M\n\n" + NOTE + "".join(f"\n## {title}\n\n{text}" for title, text in parts)


NOTE = """Differences in nats a token on the same windows, mean over pairs (one a text and draw), standard error over
pairs, in brackets that over windows alone; p is Holm's over all rows and columns of its table. Negative is better.
"""
