"""`write_study_report`: the page of a cascade study, with its JSON and CSV files beside it."""

import shlex
from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.cascade.study import read_study
from geowidth.cascade.study_arms import ARMS
from geowidth.cascade.study_design import RATES, WINDOWS
from geowidth.cascade.study_files import RECORD_FILE
from geowidth.files import PathLike
from geowidth.report.cascade_page import study_page
from geowidth.report.cascade_tables import arms_csv, blocks_csv
from geowidth.report.charts import clean

PAGE = "report.html"
OUTPUTS = (PAGE, RECORD_FILE, "arms.csv", "blocks.csv")


def write_study_report(folder: PathLike) -> Path:
    """Draw a cascade study as report.html in its folder, with study.json, arms.csv and blocks.csv; returns the page.

    Half-finished studies are drawn too, with what is missing. Equal files give equal bytes. Raises UserError for a
    folder without a study, and for damaged files.
    """
    folder = Path(folder)
    record = read_study(folder)
    for name in OUTPUTS:
        records.check_writable(folder / name)
    records.write_json(folder / RECORD_FILE, record)
    for name, text in study_texts(record, folder).items():
        records.write_text(folder / name, text)
    return folder / PAGE


def study_texts(record: dict[str, Any], folder: PathLike) -> dict[str, str]:
    """{file: text} of the page and the tables of a record. folder: as the page names it."""
    place = Path(folder)
    return {
        "arms.csv": clean(arms_csv(record)),
        "blocks.csv": clean(blocks_csv(record)),
        PAGE: study_page(record, place.name or str(place), command_of(record, place)),
    }


def command_of(record: dict[str, Any], folder: Path) -> str:
    """The command that makes the study, with every setting that is not the default."""
    settings, training = record["settings"], record["settings"]["training"]
    words = ["geowidth", "cascade", "study", "--preset", settings["preset"], "--out", str(folder)]
    usual = {"corpus": "stdlib", "arms": list(ARMS), "windows": WINDOWS, "seed": 0, "rates": list(RATES)}
    given = {name: settings[name] for name in usual} | {"seeds": settings["seeds"], "steps": training["steps"]}
    for name, value in given.items():
        if name not in usual or value != usual[name]:
            option = "sgd-rates" if name == "rates" else name
            words += [f"--{option}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return shlex.join(words)
