"""Cases of files: damaged run folders in report and compare, formulas in CSV, control characters, equal pictures."""

import copy
import csv
import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
from synthetic import make_run  # noqa: E402

from geowidth import records  # noqa: E402
from geowidth.errors import UserError  # noqa: E402
from geowidth.report import table, write_report  # noqa: E402
from geowidth.train.compare import compare_folders  # noqa: E402

BAD_FILES = {
    "empty": b"", "cut": b'{"kind": "geowidth', "UTF-16": '{"a": 1}'.encode("utf-16"), "list": b"[]", "null": b"null",
    "number": b"7", "text": b'"x"', "object": b"{}", "nested": b"[" * 100_000, "noise": bytes(range(256)),
    "huge": b'{"kind": 1' + b"0" * 400 + b"}",
}  # fmt: skip
BAD_VALUES = (
    None, True, -1, 1.5, 2**63, 10**300, 1e308, "x", "", [], {}, [1], ["a"], [None], [[]], [{}], {"a": 1}, {"a": {}},
    {"a": None}, {"$float": "nan"}, {"$float": "inf"}, "\ud800", "<b>&\x1b",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small run folder that report and compare both accept."""
    folder = make_run(tmp_path_factory.mktemp("whole") / "run", layers=3, arms=("uniform", "geometry"), seeds=2)
    for path in folder.glob("arms/*/seed-*/result.json"):
        seed = int(path.parent.name.removeprefix("seed-"))
        about = {"arm": path.parent.parent.name, "seed": seed, "steps": 150, "evaluation_tokens": 100}
        about |= {"preset": "nano", "model": {"layers": 3}, "training": {"steps": 150}}
        path.write_text(json.dumps(records.read_json(path) | about))
    work = records.read_json(folder / "work.json")
    for layer in work["details"]:
        layer |= {"bands": {"subsamples": 3, "raw": {"shift": [0.1, 0.2]}}, "large_norm_tokens": {"before": [1]}}
    records.write_json(folder / "work.json", work | {"raw_without_large_norms": {"shift": [1.0, 2.0, 3.0]}})
    write_report(folder)
    compare_folders(folder)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


CALLS = {"report": write_report, "compare": lambda folder: table(compare_folders(folder))}


def try_both(folder, seen, names=tuple(CALLS)):
    """Report and compare end well or with one line; any other exception fails the test."""
    for name in names:
        try:
            CALLS[name](folder)
            seen[name].add("done")
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            seen[name].add("refused")


def sources(folder):
    """Every kind of file of a run once."""
    inside = [f"arms/geometry/seed-0/{name}" for name in ("config.json", "result.json", "metrics.jsonl")]
    return [
        folder / name for name in ("settings.json", "work.json", "comparison.json", "schedules/geometry.json", *inside)
    ]


def test_damaged_run_folders_every_file_in_turn(run):
    seen = {"report": set(), "compare": set()}
    for path in sources(run):
        before = path.read_bytes()
        for data in (*BAD_FILES.values(), before[: len(before) // 2], b"\xef\xbb\xbf" + before):
            path.write_bytes(data)
            try_both(run, seen)
        for other in sources(run):
            path.write_bytes(other.read_bytes() if other != path else before)
            try_both(run, seen)
        path.unlink()
        try_both(run, seen)
        path.mkdir()
        with pytest.raises(UserError, match="it is a folder"):
            write_report(run)
        path.rmdir()
        path.write_bytes(before)
    assert seen == {"report": {"done", "refused"}, "compare": {"done", "refused"}}
    write_report(run)


def places(value, path=()):
    """Paths of the parts of a JSON value; of lists the first two items."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def replaced(value, path, new):
    value = part = copy.deepcopy(value)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = new
    return value


def test_damaged_run_folders_every_key_in_turn(run):
    drawn, seen = random.Random(10), {"report": set(), "compare": set()}
    for path in sources(run):
        before = path.read_bytes()
        lines = before.decode().splitlines()
        record = json.loads(lines[3] if path.suffix == ".jsonl" else before)
        for place in places(record):
            text = json.dumps(replaced(record, place, drawn.choice(BAD_VALUES)))
            path.write_text("\n".join([*lines[:3], text, *lines[4:]]) if path.suffix == ".jsonl" else text)
            try_both(run, seen, tuple(CALLS) if path.name == "result.json" else ("report",))
        path.write_bytes(before)
    assert seen == {"report": {"done", "refused"}, "compare": {"done", "refused"}}


def test_damaged_run_folders_that_did_break(run):
    """The places where a traceback came before, with the word that the line must hold."""
    for name, place, new, word in (
        ("comparison.json", ("arms", 0), 7, "arms[0]"),
        ("comparison.json", ("arms", 1, "difference", "seeds_for_power"), [1], "seeds_for_power"),
        ("comparison.json", ("arms", 1, "difference", "interval"), ["a", "b"], "interval"),
        ("comparison.json", ("arms", 0, "losses"), {"9" * 5000: 1.0}, "losses"),
        ("comparison.json", ("arms", 0, "arm"), "", "a name"),
        ("comparison.json", ("baseline",), ["uniform"], "baseline"),
        ("work.json", ("work", "raw", "shift"), [1.0], "layers"),
        ("work.json", ("raw_without_large_norms", "shift"), [1.0], "layers"),
        ("work.json", ("details",), [7], "details[0]"),
        ("work.json", ("work", "raw"), [1], "work.raw"),
        ("schedules/geometry.json", ("widths",), [[1]], "widths"),
        ("schedules/geometry.json", ("widths",), [], "widths"),
        ("schedules/geometry.json", ("budget",), 3, "budget"),
        ("schedules/geometry.json", ("settings", "floor"), "x", "settings.floor"),
        ("settings.json", ("settings", "arms"), [7], "settings.arms[0]"),
        ("settings.json", ("kind",), None, "geowidth.run"),
        ("arms/geometry/seed-0/result.json", ("loss",), "low", "loss"),
        ("arms/geometry/seed-0/result.json", ("arm",), "uniform", "arm uniform seed 0"),
        ("arms/geometry/seed-0/result.json", ("seed",), 1, "arm geometry seed 1"),
    ):
        path = run / name
        before = path.read_text()
        path.write_text(json.dumps(replaced(json.loads(before), place, new)))
        with pytest.raises(UserError) as error:
            write_report(run)
        assert name in str(error.value) and word in str(error.value), (name, place, str(error.value))
        path.write_text(before)
    (run / "arms/geometry/seed-0/metrics.jsonl").write_text('{"step": 1}\n[3]\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl line 1 is damaged: split is None"):
        write_report(run)


def test_damaged_run_folders_with_files_for_folders(run):
    for name in ("arms", "schedules"):
        shutil.move(run / name, run / "away")
        (run / name).write_text("x")
        with pytest.raises(UserError, match=f"{name} is not a folder"):
            write_report(run)
        (run / name).unlink()
        write_report(run)
        missing = records.read_json(run / "report.json")["missing"]
        assert any(note.startswith(name) for note in missing)
        shutil.move(run / "away", run / name)


def test_result_of_compare_that_lacks_a_setting_or_overflows(run):
    path = run / "arms/geometry/seed-0/result.json"
    before = path.read_text()
    for change, word in (
        ({"model": {}}, "model layers is None"),
        ({"training": {"steps": 150, "more": 1}}, "training more is 1"),
        ({"loss": 1e308}, "loss"),
        ({"loss": {"$float": "nan"}}, "loss"),
    ):
        path.write_text(json.dumps(json.loads(before) | change))
        with pytest.raises(UserError, match=word):
            compare_folders(run)


# Words

NAMES = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK('x')", "a=1", "plain")


def test_formulas_in_names_of_arms_are_texts_in_every_csv(tmp_path):
    arms = ("uniform", *NAMES)
    folder = make_run(tmp_path / "run", layers=3, arms=("uniform", "other"), seeds=2)
    comparison = records.read_json(folder / "comparison.json")
    other = comparison["arms"][1]
    other["difference"]["mean"] = -0.5
    comparison["arms"] = [comparison["arms"][0], *({**other, "arm": name} for name in NAMES)]
    records.write_json(folder / "comparison.json", comparison)
    work = records.read_json(folder / "work.json")
    work["work"]["raw"]["=2+3"] = work["work"]["raw"]["shift"]
    records.write_json(folder / "work.json", work)
    write_report(folder)
    found = set()
    for name in ("work.csv", "widths.csv", "losses.csv", "comparison.csv"):
        with open(folder / name, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        for cell in {cell for row in rows[1:] for cell in row}:
            found.add(cell)
            try:
                float(cell)  # numbers stay numbers, negative ones too
            except ValueError:
                assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), (name, cell)
    assert {"'=1+1", "'@SUM(A1)", "'\\r=1", "'=2+3", "a=1", "plain"} <= found and len(arms) == 10
    assert any(cell.startswith("-") for cell in found)


def test_control_characters_in_names_reach_neither_page_nor_picture_nor_terminal(tmp_path, capsys):
    from geowidth import cli
    from geowidth.report import profile_svg

    name = "a\x1b[31m\x9b\u202eb"
    folder = make_run(tmp_path / "run", layers=3, arms=("uniform", "other"), seeds=2)
    comparison = records.read_json(folder / "comparison.json")
    comparison["arms"][1] |= {"arm": name, "sentence": f"{name}: no difference."}
    records.write_json(folder / "comparison.json", comparison)
    work = records.read_json(folder / "work.json")
    work["work"]["raw"][name] = work["work"]["raw"]["shift"]
    records.write_json(folder / "work.json", work)
    page = write_report(folder).read_text(encoding="utf-8")
    texts = [page, profile_svg(work), *((folder / f"{n}.csv").read_text(encoding="utf-8") for n in ("work", "widths"))]
    for text in texts:
        assert not set(text) & set("\x1b\x9b\u202e\x7f\0")
    assert "a\ufffd[31m" in page
    assert cli.main(["report", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_pictures_are_the_same_bits_every_time(tmp_path, monkeypatch):
    from geowidth.allocate import allocate
    from geowidth.allocate.plot import plot_schedule
    from geowidth.artifacts.calibration import Calibration
    from geowidth.diagnose.calibration_plot import plot_calibration

    schedule = allocate("cosine", layers=4, base_width=64, model_dimension=32)
    fit = {"difficulty": 0.5, "exponent": 0.4}
    rows = [
        {"layer": layer, "width": w, "seed": 0, "loss": 2.0, "difference": float(np.log(64 / w))}
        for layer in (0, 1)
        for w in (32, 48, 96)
    ]
    nothing = dict.fromkeys(Calibration.__dataclass_fields__)
    found = Calibration(**nothing | {"widths": (64, 64), "layers": [fit, fit], "curves": rows, "settings": {}})
    for suffix, draw, what in (
        ("svg", plot_schedule, schedule),
        ("png", plot_schedule, schedule),
        ("svg", plot_calibration, found),
    ):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
        draw(what, tmp_path / f"one.{suffix}")
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
        draw(what, tmp_path / f"two.{suffix}")
        one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two and b"<dc:date>" not in one
