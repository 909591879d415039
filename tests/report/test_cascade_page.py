"""The page of a cascade study: well formed, and every statement on it is one of the record's."""

import csv
import shutil

import pytest
from test_report_page import check

from geowidth import cli, records
from geowidth.errors import UserError
from geowidth.report import write_report
from geowidth.report.cascade_charts import axis_values
from tests.cascade.made_studies import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study folder with its page."""
    folder = tmp_path_factory.mktemp("studies") / "läuft <gut>"
    make_study(folder)
    write_report(folder)
    return folder


def plain_text(page):
    return page.text.replace("\u00a0", " ")


def test_page_is_well_formed_and_needs_no_network(study):
    page, text = check(study)
    assert "http" not in text and not {tag for tag, _ in page.tags} & {"link", "iframe", "img", "object"}
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["late", "importance", "shares", "pairs", "settings"]
    assert "läuft <gut>" in page.text and "<gut>" not in text


def test_the_first_screen_says_what_the_record_says(study):
    page, text = check(study)
    record = records.read_json(study / "study.json", "geowidth.cascade_study", 1)
    said = plain_text(page)
    assert len(record["sentences"]) == 6
    for statement in (
        record["question"],
        record["headline"],
        record["definition"],
        *record["plain"],
        *record["notes"],
        *(line.partition(" ")[2] for line in record["sentences"]),
    ):
        assert statement in said, statement
    header = text[text.index("<header") : text.index("</header>")]
    assert header.count("<li>") == 6


def test_tables_hold_the_numbers_of_the_record(study):
    page, _ = check(study)
    record = records.read_json(study / "study.json")
    for arm in record["arms"]:
        assert f"{100 * arm['means']['late_half']:.1f}" in page.text
        for block, value in enumerate(arm["means"]["importance"]):
            assert f"{value:.4f} \u00b1 {arm['spreads']['importance'][block]:.4f}" in page.text
        for found in arm["differences"].values():
            assert f"{found['holm_p']:.2g}" in page.text
        low, high = arm["correlations"]["shares_importance"]["pearson"]["interval"]
        assert f"({low:.2f} to {high:.2f})".replace("-", "\u2212") in page.text


def test_csv_files_hold_the_record(study):
    record = records.read_json(study / "study.json")
    arms = {arm["arm"]: arm for arm in record["arms"]}
    with open(study / "arms.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * len(arms)
    for row in rows:
        found = arms[row["arm"]]["differences"].get(row["measure"])
        assert float(row["mean"]) == arms[row["arm"]]["means"][row["measure"]]
        assert (row["difference"] == "") if found is None else (float(row["difference"]) == found["mean"])
    with open(study / "blocks.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(arms) * 6 * 8
    for row in rows:
        cell = arms[row["arm"]]["cells"][row["seed"]]
        assert float(row["importance"]) == cell["importance"][int(row["block"])]
        assert float(row["fan_in"]) == arms[row["arm"]]["fan_in"][int(row["block"])]


def test_the_record_alone_gives_the_same_page(study, tmp_path, capsys):
    twin = tmp_path / study.name
    twin.mkdir()
    shutil.copyfile(study / "study.json", twin / "study.json")
    assert cli.main(["report", str(twin)]) == 0
    assert str(twin / "report.html") in capsys.readouterr().out
    before, after = ((folder / "report.html").read_text(encoding="utf-8") for folder in (study, twin))
    from geowidth.report.charts import escape

    assert after.replace(escape(twin.parent), escape(study.parent)) == before
    for name in ("arms.csv", "blocks.csv", "study.json"):
        assert (twin / name).read_bytes() == (study / name).read_bytes()


def test_a_half_finished_study_is_drawn_with_the_command_that_ends_it(tmp_path):
    folder = tmp_path / "half"
    make_study(
        folder, arms=["adamw", "repeat", "sgd"], seeds=(0, 1), unfinished=[("repeat", 1), ("sgd", 0), ("sgd", 1)]
    )
    write_report(folder)
    page, _ = check(folder)
    assert "repeat: seed 1 not trained and judged to the end." in page.text and "not trained yet" in page.text
    command = f"geowidth cascade study --preset nano --out {folder} --arms adamw repeat sgd --seeds 0 1 --steps 480"
    assert command in page.text


def test_a_damaged_record_is_refused_in_one_line(study, tmp_path, capsys):
    record = records.read_json(study / "study.json")
    record["arms"][0]["cells"]["0"]["importance"] = None
    records.write_json(tmp_path / "study.json", record)
    with pytest.raises(UserError, match=r"study.json is damaged: arms\[0\].cells.0.importance is None"):
        write_report(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["settings"], {}, "settings.preset is None, not a text"),
        (["settings", "training", "batch"], "x", "settings.training.batch is 'x'"),
        (["arms"], [], "it holds no arm"),
        (["sentences"], [], "it holds 0 sentences for"),
        (["layers"], 3, "numbers for 3 layers"),
        (["arms", 0, "fan_in"], [0.0], "fan_in.0. is 0.0, not a finite number above 0"),
        (["arms", 0, "cells", "0", "shares"], [0.5], "arm adamw has a row of 1 numbers"),
        (["arms", 0, "cells", "much"], {}, "is 'much', not a name that is allowed there"),
        (["arms", 1, "differences", "late_half", "interval"], [0.5], "not two finite numbers, or null"),
        (["arms", 1, "differences", "late_half", "by_seed"], {"99": 0.1}, "from seeds without a value"),
        (["text"], {"windows": 3}, "text.context is None"),
    ],
)
def test_parts_that_are_damaged_are_named(study, tmp_path, place, value, words):
    record = records.read_json(study / "study.json")
    part = record
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    records.write_json(tmp_path / "study.json", record)
    with pytest.raises(UserError, match=f"study.json is damaged: .*{words}"):
        write_report(tmp_path)


def test_a_line_in_other_words_is_still_that_of_its_arm(study, tmp_path):
    record = records.read_json(study / "study.json")
    record["sentences"][0] = "Something else."
    records.write_json(tmp_path / "study.json", record)
    assert "Something else." in write_report(tmp_path).read_text(encoding="utf-8")


def test_the_axis_leaves_out_first_blocks_that_outweigh_the_rest():
    assert max(axis_values([[9, 1, 2], [8, 1.5, 1]])) == pytest.approx(2.24)
    assert max(axis_values([[3, 1, 2]])) == 3 and axis_values([]) == [] and axis_values([[1]]) == [1]
