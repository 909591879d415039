"""The page of a run folder: well formed, self-contained, escaped, complete, and honest about what is missing."""

import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from synthetic import comparison_record, losses, make_run, work_record

from geowidth import records
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.report import write_report

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Collects tags, attributes and text; every tag must be closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.words, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        assert len(dict(attributes)) == len(attributes)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return re.sub("[ \n]+", " ", " ".join(self.words)).strip()


def check(folder):
    """The checked page of a run folder: well formed, unique ids, every SVG strict XML with finite numbers."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Checker(text)
    assert len(set(page.ids)) == len(page.ids)
    drawings = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) >= 1 or "not been" in text
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', re.sub(r'data-tip="[^"]*"', "", drawing))
    return page, text


def test_page_is_well_formed_and_needs_no_network(finished):
    page, text = check(finished)
    assert "http" not in text and "url(" not in text.replace("url(#", "")
    assert "@import" not in text and not {tag for tag, _ in page.tags} & {"link", "iframe", "img", "object"}
    assert not any("src" in attributes for _, attributes in page.tags)
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["work", "widths", "loss", "evidence", "settings"]
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert all("aria-labelledby" in drawing or "aria-hidden" in drawing for drawing in drawings)


def test_numbers_stand_on_the_page(finished):
    page, _ = check(finished)
    record = records.read_json(finished / "comparison.json")
    assert record["sentence"] in page.text
    for arm in record["arms"]:
        assert f"{arm['mean_loss']:.4f}" in page.text
        for loss in arm["losses"].values():
            assert f"{loss:.4f}" in page.text
    cosine = record["arms"][1]["difference"]
    assert f"\u2212{-cosine['mean']:.4f} \u00b1 {cosine['standard_error']:.4f}" in page.text
    for words in (
        "1\u202f612\u202f416",
        "307\u202f200",
        "2.97 T",
        "sha256 9f2c4be19f2c",
        "8 layers, d 128, 4 heads",
        "Models of 1.61 M parameters",
        "12.0 MB",
    ):
        assert words in page.text
    for words in ("172", "516", "sets the widths", "What a better coupling could still gain", "20 neighbours"):
        assert words in page.text
    assert "--arms uniform cosine geometry reversed --seeds 0 1 2 --steps 150 --tokens 512" in page.text


def test_no_colour_alone_tells_arms_apart(finished):
    from geowidth.report.widths import arm_styles

    looks = arm_styles(["uniform", *"abcdefghijk"], "uniform").values()
    assert len({(look.hue, look.dash, look.shape) for look in looks}) == len(looks)
    _, text = check(finished)
    for name in ("dash1", "dash2", "dash3", "polygon", "circle"):
        assert name in text


def test_same_files_give_same_bytes(finished, tmp_path):
    twin = tmp_path / finished.name
    shutil.copytree(finished, twin)
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    write_report(twin)
    for name, content in before.items():
        if name != "report.html":
            assert (twin / name).read_bytes() == content
    here, there = (str(folder).encode() for folder in (finished.parent, twin.parent))
    assert (twin / "report.html").read_bytes().replace(there, here) == before["report.html"]


EVIL = "<script>alert('x')</script>&\"\u0000\u202e"


def test_every_string_is_escaped(tmp_path):
    folder = make_run(tmp_path / "a <b> & 'c' ü", arms=("uniform", "cosine"), seeds=2)
    record = records.read_json(folder / "comparison.json")
    record["sentence"] = f"Sentence {EVIL}"
    record["arms"][1] |= {"arm": EVIL, "sentence": EVIL}
    records.write_json(folder / "comparison.json", record)
    work = records.read_json(folder / "work.json")
    work["settings"][EVIL] = EVIL
    records.write_json(folder / "work.json", work)
    settings = records.read_json(folder / "settings.json")
    settings["settings"]["preset"] = f"nano{EVIL}"
    records.write_json(folder / "settings.json", settings)
    write_report(folder)
    page, text = check(folder)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "\0" not in text and "alert('x')" not in text and "<b>" not in text
    assert "Sentence <script>alert('x')</script>&\"" in page.text
    records.read_json(folder / "report.json", "geowidth.report", 1)


def test_half_finished_run_says_what_is_missing_and_how_to_get_it(tmp_path):
    folder = make_run(tmp_path / "half done", half=True)
    write_report(folder)
    page, _ = check(folder)
    assert "This run is not finished: nothing may be concluded yet." in page.text
    assert "arms/cosine: seed 2 not finished." in page.text
    assert "arms/geometry: seeds 0, 1, 2 not finished." in page.text
    assert "No work profile has been measured. To make it: geowidth run --preset nano --out '" in page.text
    assert "The arms have not been compared." in page.text and "Not compared yet" in page.text
    summary = records.read_json(folder / "report.json", "geowidth.report", 1)
    assert len(summary["missing"]) == 5 and summary["resume_command"].startswith("geowidth run")


@pytest.mark.parametrize("keep", ["settings.json", "work.json", "schedules", "arms", "comparison.json"])
def test_any_single_piece_makes_a_page(finished, tmp_path, keep):
    folder = tmp_path / "run"
    folder.mkdir()
    copy = shutil.copytree if (finished / keep).is_dir() else shutil.copy
    copy(finished / keep, folder / keep)
    write_report(folder)
    page, _ = check(folder)
    assert ("Not finished." in page.text) and records.read_json(folder / "report.json")["missing"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 1}, "1 layer, d 128"),
        ({"layers": 120}, "119"),
        ({"seeds": 1}, "One seed says nothing about chance"),
        ({"arms": ("uniform",)}, "Only uniform was trained"),
        ({"odd": True}, "unequal numbers of bars that never die"),
        ({"seeds": 6, "arms": ("uniform", "cosine", "reversed", "a", "b", "c", "d", "e")}, "6 paired seeds"),
    ],
)
def test_unusual_runs_are_drawn(tmp_path, options, words):
    folder = make_run(tmp_path / "run", **options)
    write_report(folder)
    page, _ = check(folder)
    assert words in page.text


def test_many_odd_values_and_sizes(tmp_path):
    folder = make_run(tmp_path / "run", layers=6)
    work = work_record(6)
    inf, nan = float("inf"), float("nan")
    work["work"]["raw"] = {"shift": [inf] * 6, "gw": [nan] * 6, "topology": [0.0] * 6}
    work["work"]["spherical"] = {
        "shift": [1e-300] * 6,
        "gw": [1e300, 1, 2, 3, -inf, nan],
        "topology": [1e-9, *[2e-9] * 5],
    }
    work["work"]["hyperbolic"] = {"shift": [1, 10, 1e2, 1e3, 1e4, 0.5], "gw": [-1.0, 2, 3, 4, 5, 6]}
    work["dimension"] = {"mle": [nan, inf, 1, 2, 3, 4]}
    for layer, details in enumerate(work["details"]):
        details["bands"] = {"subsamples": 20, "subsample": 256, "hyperbolic": {"shift": [0.5, 10.0 ** (layer + 1)]}}
        details["large_norm_tokens"] = {"before": [3], "after": []}
    records.write_json(folder / "work.json", work)
    write_report(folder)
    page, text = check(folder)
    for words in ("no finite value", "not measured", "log scale", "5 to 95 % quantiles", "five times the median norm"):
        assert words in page.text
    assert "whisker" in text and "\u2212\u221e" in page.text


def test_interval_far_wider_than_the_seeds_is_cut_with_an_arrow(tmp_path):
    folder = make_run(tmp_path / "run", arms=("uniform", "cosine"), seeds=2)
    final = losses(("uniform", "cosine"), 2)
    for shifts, lines in (((0.010, 0.011), 3), ((-0.01, 0.01), 1)):  # a bar and its two ends, or the bar between arrows
        final["cosine"] = {seed: final["uniform"][seed] + shifts[int(seed)] for seed in final["uniform"]}
        records.write_json(folder / "comparison.json", comparison_record(final, 8))
        write_report(folder)
        _, text = check(folder)
        assert text.count('class="interval stroke-arm1"') == 2 * lines  # drawn wide and narrow


def test_folder_that_cannot_be_drawn_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, words in (("none", "does not exist"), ("file", "is a file"), ("empty", "holds nothing of a run")):
        assert main(["report", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert not (tmp_path / "empty" / "report.html").exists()


@pytest.mark.parametrize("name", ["work.json", "comparison.json", "schedules/cosine.json"])
def test_broken_record_is_named(finished, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    record = records.read_json(folder / name)
    for change in ({"kind": "other"}, {"schema": 99}, {"work": [1], "arms": [1], "widths": "x"}):
        records.write_json(folder / name, {**record, **change})
        with pytest.raises(UserError, match=name.split("/")[-1]):
            write_report(folder)
    (folder / name).write_text('{"kind": NaN}')
    with pytest.raises(UserError, match="not valid JSON"):
        write_report(folder)


def test_only_the_last_metrics_line_may_be_torn(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    path = folder / "arms" / "cosine" / "seed-0" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step"')
    write_report(folder)
    path.write_text('{"step"\n' + whole)
    with pytest.raises(UserError, match="line 1"):
        write_report(folder)


def test_command_prints_the_page_and_opens_it_only_when_asked(finished, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["report", str(finished)]) == 0
    assert capsys.readouterr().out == f"{finished / 'report.html'}\n" and not opened
    assert main(["report", str(finished), "--open"]) == 0
    assert opened == [(finished / "report.html").as_uri()]
    for wrong in (["--open=False"], ["--open", "False"], ["--nope"]):
        assert main(["report", str(finished), *wrong]) == 2
