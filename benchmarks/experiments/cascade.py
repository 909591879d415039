"""The committed cascade study: its record, page and tables, copied from a finished folder, and a table for readers.

    geowidth cascade study --preset nano --out RUNS/cascade
    python -m benchmarks.experiments.cascade RUNS/cascade

writes study.json, report.html, arms.csv, blocks.csv and headline.md into the folder `cascade` beside this file. Every
file but study.json follows from it.
"""

import sys
from pathlib import Path

from geowidth import records
from geowidth.cascade.study import read_study
from geowidth.cascade.study_words import between, percent, points
from geowidth.errors import UserError
from geowidth.report.cascade_write import study_texts

FOLDER = Path(__file__).parent / "cascade"
PLACE = "benchmarks/experiments/cascade"  # as the page names the folder, wherever the repository lies


def collect(run, folder=FOLDER):
    """Write the files of a finished study into `folder`."""
    record = read_study(run)
    if record["missing"]:
        raise UserError(f"{run} is not finished: {record['missing'][0]} Run geowidth cascade study again to finish it")
    records.write_json(folder / "study.json", record)
    for name, text in texts_of(record).items():
        records.write_text(folder / name, text)


def committed():
    """The committed record."""
    return read_study(FOLDER)


def texts_of(record):
    """{file: text} of everything that follows from the record."""
    return {**study_texts(record, PLACE), "headline.md": f"{table(record)}\n"}


def table(record):
    """The arms as a Markdown table, and what may be concluded."""
    half = record["late"]["half"]
    share = f"importance in blocks {half[0]} to {half[-1]}"
    head = ["arm", share, "minus the plain arm's, points (95 % interval)", "corrected p", "share of the gradient there"]
    head.append("Spearman, gradient share and importance")
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for arm in record["arms"]:
        means, found = arm["means"], arm["differences"].get("late_half")
        gap, p = "plain", ""
        if found is not None:
            gap = f"{points(found['mean'])} ({' to '.join(map(points, found['interval']))})"
            p = f"{found['holm_p']:.2g}"
        gradient = percent(sum(means["shares"][block] for block in half))
        spearman = between(arm["correlations"]["shares_importance"]["spearman"])
        cells = (f"{arm['arm']}: {arm['sentence']}", percent(means["late_half"]), gap, p, gradient, spearman)
        lines.append(f"| {' | '.join(cells)} |")
    seeds = len(record["settings"]["seeds"])
    return "\n".join([*lines, "", f"{record['headline']} {seeds} paired seeds; p by t test, Holm's correction."])


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
