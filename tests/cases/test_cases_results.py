"""M5: every committed result says what it was made from, and stale ones are found."""

import json
import shutil

import pytest

from benchmarks import committed
from benchmarks.schema import read_rows
from geowidth import records
from geowidth.artifacts.work_profile import WorkProfile

ENTRIES, EXPERIMENTS = committed.entries(), committed.entries(committed.EXPERIMENTS)
OF_KIND = {kind: [n for n, e in ENTRIES.items() if e["kind"] == kind] for kind in ("work", "picture", "rows")}


def test_M5_no_measured_profile_or_picture_is_stale():
    found = committed.stale()
    wrong = {name: why for name, why in found.items() if ENTRIES.get(name, {}).get("kind") != "rows"}
    assert not wrong, f"{wrong}; make results says how to make them again"


@pytest.mark.parametrize("name", OF_KIND["work"])
def test_M5_a_profile_names_version_settings_model_file_and_text(name):
    entry, profile = ENTRIES[name], WorkProfile.read(committed.RESULTS / name)
    clouds = profile.settings["clouds"]
    assert profile.environment["geowidth"] and "unknown" not in profile.environment["geowidth"]
    assert clouds["model"] and clouds["corpus"] and "Python standard library" in clouds["corpus_source"]
    assert {"command", "date", "model", "text"} <= set(entry) and "Python source" in entry["text"]
    if "file" in clouds["source"]:
        assert clouds["source"]["file"] in entry["model"] and "4-bit" in entry["model"]


@pytest.mark.parametrize("name", OF_KIND["picture"])
def test_M5_a_picture_names_what_it_shows(name):
    entry = ENTRIES[name]
    text = (committed.RESULTS / name).read_text()
    assert entry["title"].replace("'", "&#39;") in text and ENTRIES[entry["of"]]["kind"] == "work"
    assert ("4-bit" in text) == ("4-bit" in ENTRIES[entry["of"]]["model"])


@pytest.mark.parametrize("name", OF_KIND["rows"])
def test_M5_rows_name_date_version_and_processor(name):
    entry = ENTRIES[name]
    assert {"command", "date", "commit", "sources", "digest"} <= set(entry)
    assert all(row.device and row.versions.startswith("geowidth") for row in read_rows(committed.RESULTS / name))


def test_M5_no_experiment_is_stale_and_each_names_version_settings_and_text():
    assert not committed.stale(committed.EXPERIMENTS)
    for name, entry in EXPERIMENTS.items():
        assert {"command", "date", "commit", "version"} <= set(entry)
        if entry["kind"] == "study":
            record = records.read_json(committed.EXPERIMENTS / name / "comparison.json")
            assert record["settings"]["training"] and record["environment"]["geowidth"] == entry["version"]
            assert entry["text"] and entry["text_digest"] == record["settings"]["corpus"]["digest"]


def test_M5_what_goes_stale_of_an_experiment_is_found(tmp_path):
    copy = tmp_path / "experiments"
    shutil.copytree(committed.EXPERIMENTS, copy)
    study, tables, sweep = (
        next(name for name, entry in EXPERIMENTS.items() if entry["kind"] == kind)
        for kind in ("study", "tables", "sweep")
    )
    path = copy / study / "schedules.json"
    record = json.loads(path.read_text())
    record["geometry"]["widths"].reverse()
    path.write_text(json.dumps(record))
    (copy / tables / "order.csv").write_text("another\n")
    (copy / "pruning" / "rivals.csv").write_text("another\n")
    known = json.loads((copy / committed.RECORD).read_text())
    known["results"][sweep]["text_digests"]["stdlib"] = "0"
    (copy / committed.RECORD).write_text(json.dumps(known))
    found = committed.stale(copy)
    assert "other widths" in found[study] and "order.csv" in found[tables] and "texts" in found[sweep]
    assert found["pruning"] == "the records give another rivals.csv"


def test_M5_what_goes_stale_is_found(tmp_path):
    results = tmp_path / "results"
    shutil.copytree(committed.RESULTS, results)
    before = set(committed.stale(results))
    work, picture, rows = (OF_KIND[kind][0] for kind in ("work", "picture", "rows"))
    record = json.loads((results / work).read_text())
    record["settings"]["revisions"]["gw"] -= 1
    (results / work).write_text(json.dumps(record))
    (results / picture).write_text((results / picture).read_text().replace("layer", "lager"))
    (results / "new.csv").write_text("op\n")
    known = json.loads((results / committed.RECORD).read_text())
    known["results"][rows]["digest"] = committed.digest(known["results"][rows]["sources"])
    (results / committed.RECORD).write_text(json.dumps(known))
    found = committed.stale(results)
    assert "gw 1, now 2" in found[work] and "drawn now" in found[picture] and "no entry" in found["new.csv"]
    assert rows not in found and set(found) == (before - {rows}) | {work, picture, "new.csv"}
    known["results"][rows]["digest"] = "0"
    (results / committed.RECORD).write_text(json.dumps(known))
    assert "the code was changed since" in committed.stale(results)[rows]


def test_M5_the_command_lists_stale_results_and_how_to_make_them(capsys):
    assert committed.main() == 0
    lines = capsys.readouterr().out.splitlines()
    stale = [name for folder in (committed.RESULTS, committed.EXPERIMENTS) for name in committed.stale(folder)]
    assert len(lines) == len(stale) + 1 and all("make it again with" in line for line in lines[:-1])
    assert lines[-1] == f"{len(lines) - 1} of {len(ENTRIES) + len(EXPERIMENTS)} results are stale"
