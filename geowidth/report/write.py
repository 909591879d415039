"""`write_report`: read a run folder, write the page, the JSON and the CSV files into it."""

from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.cascade.study_files import is_study
from geowidth.files import PathLike
from geowidth.report import profiles, spreadsheets, tables
from geowidth.report.charts import clean
from geowidth.report.facts import key_facts
from geowidth.report.folder import read_run
from geowidth.report.page import page

OUTPUTS = ("report.html", "report.json", "work.csv", "widths.csv", "losses.csv", "comparison.csv")


def _texts(value):
    """`value` with every text made fit for UTF-8."""
    if isinstance(value, dict):
        return {clean(key): _texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def _summary(run, rows):
    peaks: dict[str, Any] = {}
    for geometry in profiles.geometries_of(run.work) if run.work else ():
        for statistic in profiles.statistics_of(run.work):
            found = profiles.peak(profiles.signal(run.work, statistic, geometry))
            if found:
                peaks.setdefault(geometry, {})[statistic] = {"layer": found[0], "ratio_to_smallest": found[1]}
    return {
        "kind": "geowidth.report",
        "schema": 1,
        "sentence": (run.comparison or {}).get("sentence"),
        "facts": dict(key_facts(run, rows)),
        "baseline": run.baseline,
        "arms": [
            {"arm": row.arm, "mean_loss": row.mean_loss, "difference": row.difference, "interval": row.interval,
             "differences": row.differences, "verdict": tables.verdict(row, run.baseline)}
            for row in rows
        ],
        "peaks": peaks,
        "missing": list(run.missing),
        "resume_command": run.resume_command if run.missing else None,
        "files": list(OUTPUTS),
    }  # fmt: skip


def write_report(run_folder: PathLike) -> Path:
    """Draw a run folder as report.html, with report.json and CSV files beside it; returns the page's Path.

    Reads whatever of settings.json, work.json, schedules/, arms/ and comparison.json exists: a half-finished run is
    drawn too, with notes on what is missing and the command that makes it. Equal files give equal bytes. work.csv,
    widths.csv, losses.csv and comparison.csv hold only their header when there is nothing to tell.

    The folder of a cascade study gets its own page (geowidth.report.cascade_write).

    Raises UserError when the folder does not exist, holds nothing of a run or a broken file, or cannot be written.
    """
    folder = Path(run_folder)
    if is_study(folder):
        from geowidth.report.cascade_write import write_study_report  # loads torch

        return write_study_report(folder)
    run = read_run(folder)
    for name in OUTPUTS:
        records.check_writable(folder / name)
    rows = tables.rows_of(run)
    texts = {
        "work.csv": spreadsheets.work_csv(run),
        "widths.csv": spreadsheets.widths_csv(run),
        "losses.csv": spreadsheets.losses_csv(run),
        "comparison.csv": spreadsheets.comparison_csv(rows, run.baseline),
    }
    for name, text in texts.items():
        records.write_text(folder / name, clean(text))
    records.write_json(folder / "report.json", _texts(_summary(run, rows)))
    records.write_text(folder / "report.html", page(run))
    return folder / "report.html"
