"""CSV files, the stand-alone picture, the text table, and the small parts figures are made of."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import comparison_record, losses, make_run, work_record

from geowidth import records
from geowidth.errors import UserError
from geowidth.report import charts, numbers, profile_svg, style, table, tables, widths, write_report
from geowidth.report.spreadsheets import COMPARISON_COLUMNS

SVG = "{http://www.w3.org/2000/svg}"


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_hold_the_records_exactly(tmp_path):
    folder = make_run(tmp_path / "run", odd=True)
    write_report(folder)
    work = records.read_json(folder / "work.json")
    found = {(r["geometry"], r["statistic"], int(r["layer"])): float(r["value"]) for r in read_csv(folder / "work.csv")}
    assert len(found) == 8 * (9 + 4)
    for geometry, statistics in work["work"].items():
        for statistic, values in statistics.items():
            for layer, value in enumerate(values):
                read = found[geometry, statistic, layer]
                assert read == value or (math.isnan(read) and math.isnan(value))
    assert [found["", "dimension_mle", layer] for layer in range(8)] == work["dimension"]["mle"]
    widths = read_csv(folder / "widths.csv")
    cosine = records.read_json(folder / "schedules" / "cosine.json")["widths"]
    assert [int(r["width"]) for r in widths if r["arm"] == "cosine"] == cosine
    geometry = [r["at"] for r in widths if r["arm"] == "geometry"]
    assert geometry[0] == "cap" and geometry[-1] == "floor" and set(geometry[1:-1]) == {""}
    curve = read_csv(folder / "losses.csv")
    assert len(curve) == 4 * 3 * 32 and {r["split"] for r in curve} == {"train", "validation"}


def test_comparison_csv_columns(tmp_path):
    folder = make_run(tmp_path / "run", arms=("uniform", "cosine"))
    write_report(folder)
    rows = read_csv(folder / "comparison.csv")
    record = records.read_json(folder / "comparison.json")
    assert tuple(rows[0]) == COMPARISON_COLUMNS
    uniform, cosine = rows
    assert uniform["difference"] == "" and cosine["baseline"] == "uniform"
    difference = record["arms"][1]["difference"]
    assert float(cosine["difference"]) == difference["mean"]
    assert [float(cosine["interval_low"]), float(cosine["interval_high"])] == difference["interval"]
    assert float(cosine["bits_per_byte"]) == pytest.approx(record["arms"][1]["mean_loss"] / math.log(2))


def test_unfinished_run_has_csv_headers_only(tmp_path):
    folder = tmp_path / "run"
    records.write_json(folder / "settings.json", {"kind": "geowidth.run", "schema": 1, "settings": {"preset": "nano"}})
    write_report(folder)
    for name in ("work", "widths", "losses", "comparison"):
        assert len((folder / f"{name}.csv").read_text().splitlines()) == 1


@dataclass
class Profile:
    """Stands for any dataclass with the fields of a work record."""

    work: dict
    dimension: dict
    widths: tuple
    details: list


def test_profile_svg_is_one_strict_document(tmp_path):
    record = work_record(5, odd=True)
    text = profile_svg(record, key=("topology", "hyperbolic"))
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text
    groups = [g for g in root.findall(f"{SVG}g") if (g.get("transform") or "").startswith("translate")]
    assert len(groups) == 9
    assert text.count("sets the widths") == 1 and "var(--" not in text and "prefers-color-scheme:dark" in text
    records.write_json(tmp_path / "work.json", record)
    profile = Profile(record["work"], record["dimension"], tuple(record["widths"]), record["details"])
    assert profile_svg(tmp_path / "work.json") == profile_svg(record) == profile_svg(profile)
    only = {"work": {"raw": {"shift": [1.0, 2.0]}}}
    assert profile_svg(only).count("not measured") == 2 + 2  # drawn and described
    for wrong in ({}, {"work": {}}, 3):
        with pytest.raises(UserError):
            profile_svg(wrong)


def test_whatever_was_measured_is_drawn_and_listed(tmp_path):
    """A statistic beside the three, and raw signals without the tokens of very large norm."""
    folder = make_run(tmp_path / "run")
    work = records.read_json(folder / "work.json")
    for geometry in work["work"].values():
        geometry["gw_entropic"] = [0.5] * 8
    work["raw_without_large_norms"] = {name: list(values) for name, values in work["work"]["raw"].items()}
    work["raw_without_large_norms"]["gw"][2] /= 4
    work["details"][2]["large_norm_tokens"] = {"before": [7], "after": [7]}
    records.write_json(folder / "work.json", work)
    drawn = profile_svg(folder / "work.json")
    assert drawn.count("Entropic GW") == 3 and drawn.count('"line thin dash2"') == 1
    assert drawn.count("dashed: no outliers") == 1 and "over five times the median norm" in drawn
    page = write_report(folder).read_text(encoding="utf-8")
    assert "gw raw, no large norms" in page and "shift raw, no large norms" not in page
    found = {(r["geometry"], r["statistic"], int(r["layer"])): float(r["value"]) for r in read_csv(folder / "work.csv")}
    assert found["raw", "gw_no_large_norms", 2] == work["raw_without_large_norms"]["gw"][2]
    assert found["hyperbolic", "gw_entropic", 7] == 0.5 and ("raw", "shift_no_large_norms", 0) not in found


def test_a_mixture_marks_no_single_signal(tmp_path):
    folder = make_run(tmp_path / "run")
    assert "sets the widths" in write_report(folder).read_text(encoding="utf-8")
    schedule = records.read_json(folder / "schedules" / "geometry.json")
    schedule["settings"]["mixture"] = {"raw/gw": 1.0, "hyperbolic/shift": 2.0}
    records.write_json(folder / "schedules" / "geometry.json", schedule)
    assert "sets the widths" not in write_report(folder).read_text(encoding="utf-8")


def test_text_table():
    record = comparison_record(losses(("uniform", "cosine"), 3), 8)
    record["arms"][1]["sentence"] = f"cosine: {'words ' * 30}."
    record["sentence"] = f"{record['arms'][1]['sentence']} And more."
    lines = table(record).splitlines()
    assert lines[-1] == "And more." and max(map(len, lines)) <= 100
    assert lines[5] == tables.headline(tables.arm_rows(record), "uniform") and lines[6].startswith("cosine: words")
    assert len({len(line) for line in lines[:4]}) == 1
    assert "baseline" in lines[2] and f"{record['arms'][1]['mean_loss']:.4f}" in lines[3]
    single = comparison_record(losses(("uniform", "cosine"), 1), 8)
    assert "\u2013" in table(single).splitlines()[3]


def row(**changes):
    known = dict.fromkeys(tables.ArmRow.__dataclass_fields__)
    known |= {"arm": "cosine", "is_baseline": False, "losses": {}, "power": {}, "confidence": 0.95}
    return tables.ArmRow(**{**known, "differences": dict.fromkeys(range(6), 0.1), **changes})


@pytest.mark.parametrize(
    ("interval", "p", "standing", "words"),
    [
        ((-0.3, -0.1), 0.03, "lower", "Cosine has a lower loss than uniform (6 paired seeds)."),
        (
            (-0.3, -0.1),
            0.25,
            "maybe lower",
            "Cosine looks better than uniform by its t interval alone (6 paired seeds).",
        ),
        ((0.1, 0.3), 0.03, "higher", "Cosine has a higher loss than uniform (6 paired seeds)."),
        ((-0.1, 0.3), 0.5, "same", "No arm can be told from uniform at this size."),
        ((math.nan, 0.3), 0.5, "unknown", "No conclusion yet."),
        (None, 1.0, "unknown", "No conclusion yet."),
    ],
)
def test_headline_says_no_more_than_the_numbers(interval, p, standing, words):
    one = row(interval=interval, sign_flip_p=p, difference=0.1)
    assert tables.standing(one) == standing
    assert tables.headline([row(arm="uniform", is_baseline=True), one], "uniform") == words
    assert tables.verdict(one, "uniform")
    both = tables.headline([one, row(arm="b", interval=interval, sign_flip_p=p, difference=0.1)], "uniform")
    assert (
        standing in ("same", "unknown") or both.startswith("Cosine and b have") or both.startswith("Cosine and b look")
    )


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=9), st.booleans())
@settings(max_examples=200, deadline=None)
def test_value_scale_holds_every_finite_value(values, zero):
    finite = [v for v in values if math.isfinite(v) and (v == 0 or 1e-290 < abs(v) < 1e290)]
    scale, ticks, words = charts.value_scale(finite, 100.0, 0.0, zero=zero)
    assert len(ticks) == len(words) <= 9
    for value in finite:
        if value > 0 or not scale.log:
            assert -1e-6 <= scale(value) <= 100 + 1e-6
    if zero and finite and not scale.log:
        assert scale.low <= 0 <= scale.high


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_spread_labels_do_not_touch(positions):
    placed = charts.spread(positions, 14.0, 0.0, 300.0)
    assert len(placed) == len(positions)
    ordered = sorted(placed)
    assert all(b - a >= 14 - 1e-9 for a, b in zip(ordered, ordered[1:], strict=False))
    assert max(placed) <= 300 and min(placed) >= -1e-9
    assert [placed[i] for i in sorted(range(len(placed)), key=lambda i: positions[i])] == ordered


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_survives_in_an_element(text):
    root = ElementTree.fromstring(charts.element("text", charts.escape(text), data_tip=text))
    kept = charts.clean(text)
    assert (root.text or "").replace("\r\n", "\n").replace("\r", "\n") == kept.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13, 47, 120, 121, 1000, 5000])
@pytest.mark.parametrize("room", [150, 300, 500])
def test_layer_ticks_have_room_and_both_ends(count, room):
    ticks = charts.layer_ticks(count, room)
    assert ticks[0] == 0 and ticks[-1] == count - 1 and ticks == sorted(set(ticks))
    wide = 5.5 * len(str(count - 1))
    assert all((b - a) * room / count >= wide for a, b in zip(ticks, ticks[1:], strict=False))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (numbers.significant(1234.5678), "1\u202f235"),
        (numbers.significant(0.0123456), "0.01235"),
        (numbers.significant(-8.26e-6, 2), "\u22128.3\u00b710\u207b\u2076"),
        (numbers.significant(math.inf), "infinite"),
        (numbers.significant(math.nan), "not a number"),
        (numbers.plain(-0.00001, 4), "0.0000"),
        (numbers.signed(0.00001, 4), "0.0000"),
        (numbers.signed(0.5, 2), "+0.50"),
        (numbers.plain(None, 2), "\u2013"),
        (numbers.thousands(1612416), "1\u202f612\u202f416"),
        (numbers.compact(2.97e12), "2.97 T"),
        (numbers.compact(999_700), "1.00 M"),
        (numbers.compact(512), "512"),
        (numbers.layer_list([0, 3, 4, 5, 9]), "0, 3\u20135 and 9"),
        (numbers.layer_list([2, 1]), "1, 2"),
        (numbers.tick_labels([0, 100_000, 200_000], 100_000), ["0", "100k", "200k"]),
        (numbers.tick_labels([-0.05, 0, 0.05], 0.05), ["\u22120.05", "0", "0.05"]),
        (numbers.tick_labels([0, 2e-6], 2e-6), ["0", "2e\u22126"]),
        (numbers.tick_labels([0, 5e20], 5e20), ["0", "5e20"]),
    ],
)
def test_numbers_as_people_read_them(call, words):
    assert call == words


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [style.LIGHT, style.DARK])
def test_text_colours_have_contrast(palette):
    paper = luminance(palette["paper"])
    for name in ("ink", "muted", "accent", "warn", *(f"arm{i}" for i in range(style.HUES))):
        light, dark = sorted((luminance(palette[name]), paper), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_style_sheets_name_only_known_colours():
    assert "var(--" not in style.chart_css()
    assert style.LIGHT.keys() == style.DARK.keys()
    used = set(re.findall(r"var\(--([\w-]+)\)", style.page_css()))
    assert used <= style.LIGHT.keys()


def test_csv_cells_with_odd_names(tmp_path):
    folder = make_run(tmp_path / "run", arms=("uniform", "cosine"), seeds=1)
    record = records.read_json(folder / "comparison.json")
    record["arms"][1]["arm"] = 'a,"b"\nc'
    records.write_json(folder / "comparison.json", record)
    write_report(folder)
    rows = list(csv.reader(io.StringIO((folder / "comparison.csv").read_text())))
    assert 'a,"b"\nc' in [r[0] for r in rows] and len({len(r) for r in rows}) == 1


def test_the_name_of_an_arm_and_what_it_spends_never_overlap():
    schedule = {"budget": {"spent": 110592, "value": 110592, "unit": "parameters"}}
    look = widths.arm_styles(["uniform", "other"], "uniform")["other"]
    for name in ("cosine", "permuted:seed=22", "permuted:statistic=gw,geometry=spherical,seed=242"):
        drawn = widths.width_panel(name, [8, 16], schedule, look, 16)
        (unit,) = re.findall(r'y="30"[^>]*>(FFN width[^<]*)<', drawn)
        assert ("spent" in unit) == (len(name) > 14) and drawn.count("parameters spent") == 1
        assert ("\u2026" in drawn) == (len(name) > widths.LONGEST_NAME)
