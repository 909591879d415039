"""`geowidth allocate` and `geowidth cost` from the command line: output, files, exit codes."""

import subprocess
import sys

import pytest
from test_schedules import COSINE_24

from geowidth import records
from geowidth.allocate import Schedule
from geowidth.cli import main


def call(capsys, *words):
    """(exit code, lines of output, lines of errors)."""
    code = main(["allocate", *map(str, words)])
    found = capsys.readouterr()
    return code, found.out.splitlines(), found.err.splitlines()


def test_the_published_row_in_a_process_of_its_own():
    words = ["allocate", "--schedule", "cosine", "--layers", "24", "--base", "4096", "--multiple", "16"]
    done = subprocess.run([sys.executable, "-m", "geowidth", *words], capture_output=True, text=True, check=True)
    row, budget = done.stdout.splitlines()
    assert row == COSINE_24
    assert budget == "spent 98304 of 98304 units of width (0 left), multiples of 16"
    assert done.stderr == ""


def test_work_to_schedule_and_pictures(capsys, tmp_path, work_file):
    out, svg, png = tmp_path / "ä b" / "schedule.json", tmp_path / "widths.svg", tmp_path / "widths.png"
    code, lines, errors = call(capsys, "--work", work_file, "--multiple", 8, "--out", out, "--plot", svg)
    assert code == 0 and errors == []
    found = Schedule.read(out)
    assert lines == [" ".join(map(str, found.widths)), "spent 1056768 of 1056768 parameters (0 left), multiples of 8"]
    assert svg.read_text().rstrip().endswith("</svg>")
    assert call(capsys, "--schedule", "bow_tie", "--layers", 6, "--base", 64, "--plot", png)[0] == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_options_reach_the_schedule(capsys, tmp_path, work_file):
    out = tmp_path / "schedule.json"
    words = ["--work", work_file, "--geometry", "raw", "--statistic", "shift", "--exponent", "0.3", "--no-smoothing"]
    words += ["--sensitivity", "1,1,2,2,1,1,1,1", "--control", "permuted", "--seed", 5, "--floor", "0.5x", "--cap", 900]
    assert call(capsys, *words, "--out", out)[0] == 0
    settings = Schedule.read(out).settings
    assert settings["geometry"] == "raw" and settings["statistic"] == "shift" and settings["exponent"] == 0.3
    assert settings["smoothing"] is False and settings["sensitivity"] == [1, 1, 2, 2, 1, 1, 1, 1]
    assert settings["of"] == "geometry" and settings["seed"] == 5
    assert settings["floor"] == [172.0] * 8 and settings["cap"] == [900.0] * 8
    assert call(capsys, "--work", work_file, "--mixture", "raw/gw=1,spherical/shift=0.5", "--out", out)[0] == 0
    assert Schedule.read(out).settings["mixture"] == {"raw/gw": 1.0, "spherical/shift": 0.5}


def test_heads_and_notes_are_printed(capsys, tmp_path, work_file):
    words = ["--schedule", "cascade", "--option", "taper=both", "--option", "heads=4", "--option", "steps=2"]
    code, lines, _ = call(capsys, *words, "--layers", 4, "--base", 64)
    assert code == 0 and lines[1] == "heads 6 6 2 2"
    value = records.read_json(work_file)
    value["work"]["hyperbolic"]["topology"] = [0.0] * 8
    records.write_json(work_file, value)
    code, lines, errors = call(capsys, "--work", work_file)
    assert code == 0 and lines[0] == " ".join(["344"] * 8)
    assert errors == ["note: no layer does any work: all widths are equally good, so they are uniform"]


def test_list_names_every_schedule(capsys):
    code, lines, _ = call(capsys, "--list")
    assert code == 0 and {"cosine", "geometry", "bow_tie", "inverse"} <= {line.split()[0] for line in lines}


def test_a_budget_too_small_for_measured_work_names_the_feasible_one(capsys, work_file):
    code, lines, errors = call(capsys, "--work", work_file, "--budget", "10")
    assert code == 2 and not lines and "what width 1 in every layer takes; feasible: " in errors[0]


GOOD = ["--schedule", "cosine", "--layers", "4", "--base", "64"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule", "cosin", "--layers", "4", "--base", "64"], "schedule is 'cosin'"),
        (["--layers", "4", "--base", "64"], "needs a work profile"),
        ([*GOOD, "--budget", "256"], "give one of them"),
        (["--schedule", "cosine", "--layers", "4", "--budget", "1e3"], "--budget is '1e3'; allowed: whole numbers"),
        (["--schedule", "cosine", "--layers", "4", "--budget", "-5"], "--budget is -5"),
        (["--schedule", "cosine", "--layers", "4", "--budget", "nan"], "--budget is 'nan'"),
        (["--schedule", "cosine", "--layers", "4", "--budget", "3"], "feasible: 4 or more"),
        (["--schedule", "cosine", "--layers", "4", "--budget", "999", "--cap", "100"], "feasible: 4 to 400"),
        ([*GOOD, "--multiple", "0"], "--multiple is 0"),
        ([*GOOD, "--multiple", "1.0"], "--multiple is 1.0"),
        ([*GOOD, "--multiple", "128"], "feasible: 512 or more"),
        (["--layers", "999999999999", "--base", "64", "--schedule", "uniform"], "allowed: 1 to 100000"),
        (
            ["--layers", "4", "--base", "99999999999999999", "--schedule", "uniform"],
            "base width is 99999999999999999; allowed",
        ),
        ([*GOOD, "--control", "mirrored"], "control is 'mirrored'; allowed: reversed, permuted, sorted, inverse"),
        ([*GOOD, "--floor", "NaN"], "--floor is 'NaN'"),
        ([*GOOD, "--floor=-3"], "floor of layer 0 is -3"),
        ([*GOOD, "--unit", "watts"], "budget unit is 'watts'"),
        ([*GOOD, "--option", "start"], "--option has 'start'; allowed: NAME=VALUE"),
        ([*GOOD, "--option", "start=wide"], "start is 'wide'"),
        ([*GOOD, "--option", "start=NaN"], "start is 'NaN'"),
        ([*GOOD, "--option", "begin=1"], "no option 'begin'"),
        ([*GOOD, "--option", "quantum=16"], "--option quantum is not an option of a schedule"),
        ([*GOOD, "--option", "schedule=linear"], "--option schedule is not an option of a schedule"),
        (["--work", "w.json", "--geometry", "raw", "--option", "geometry=raw"], "say the same"),
        (["--work", "w.json", "--mixture", "raw/gw=1", "--geometry", "raw"], "leave --geometry out"),
        (["--work", "w.json", "--exponent", "dim"], "allowed: dimension, fitted, finite numbers"),
        ([*GOOD[:-2], "--budget", "1.5", "--unit", "milliseconds"], "needs a cost table"),
        ([*GOOD, "--statistic", "gw"], "no option 'statistic'"),
        ([*GOOD, "--control", "cosine"], "control is 'cosine'"),
        ([*GOOD, "--work", "nowhere.json"], "cannot read nowhere.json"),
        ([*GOOD, "--cost", "nowhere.json"], "cannot read nowhere.json"),
        ([*GOOD, "--plot", "widths.pdf"], "ends in .svg or .png"),
        ([*GOOD, "--seed", "-1"], "--seed is -1"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, lines, errors = call(capsys, *words, "--out", "schedule.json")
    assert code == 2 and lines == [] and len(errors) == 1
    assert errors[0].startswith("geowidth: ") and message in errors[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--list", "--biases", "--no-smoothing"])
def test_switches_take_no_value_that_could_lie(capsys, flag):
    for words in ([flag, "False"], [f"{flag}=0"], [f"--no-{flag[2:]}"], [flag[:-1]]):
        assert main(["allocate", *GOOD, *words]) == 2, words
        found = capsys.readouterr()
        assert found.out == "" and found.err.count("\n") == 1


def test_unwritable_outputs_are_noticed_before_the_work(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for flag, name in (("--out", "file/schedule.json"), ("--plot", "file/widths.svg"), ("--out", "")):
        code, lines, errors = call(capsys, *GOOD, flag, tmp_path / name)
        assert code == 2 and lines == [] and "cannot write" in errors[0]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_existing_outputs_are_replaced(capsys, tmp_path):
    out = tmp_path / "schedule.json"
    out.write_text("old")
    assert call(capsys, *GOOD, "--out", out)[0] == 0
    assert Schedule.read(out).widths == (96, 80, 48, 32)


def test_cost_table_end_to_end(capsys, tmp_path):
    out = tmp_path / "cost.json"
    words = ["--model-dimension", "16", "--widths", "8:64:8", "--tokens", "16", "--rounds", "1", "--out", str(out)]
    assert main(["cost", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and lines[1].split()[0] == "8"
    value = records.read_json(out, "geowidth.cost", 1)
    assert value["widths"] == list(range(8, 65, 8)) and value["milliseconds"] == sorted(value["milliseconds"])
    assert value["device"] == "cpu" and value["dtype"] == "float32" and value["pass"] == "forward"
    code, lines, _ = call(capsys, "--schedule", "uniform", "--layers", 3, "--base", 32, "--multiple", 8, "--cost", out)
    assert code == 0 and "milliseconds" in lines[1]
    budget = 4 * value["milliseconds"][-1]
    code, lines, _ = call(
        capsys, "--schedule", "linear", "--layers", 4, "--budget", budget, "--multiple", 8, "--cost", out
    )
    assert code == 0 and len(lines[0].split()) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--widths", "8:64"], "--widths is '8:64'"),
        (["--widths", "64:8:8"], "holds 0 widths"),
        (["--widths", "1:99999:1"], "holds 99999 widths"),
        (["--widths", "8:16:8", "--device", "tpu"], "device is 'tpu'"),
        (["--widths", "8:16:8", "--device", "meta"], "device is 'meta'"),
        (["--widths", "8:16:8", "--device", "cuda:99"], "CUDA devices"),
        (["--widths", "8:16:8", "--dtype", "int8"], "dtype is 'int8'"),
        (["--widths", "8:16:8", "--projections", "4"], "--projections is 4"),
        (["--widths", "8:16:8", "--rounds", "0"], "--rounds is 0"),
        (["--widths", "8:1000000000:999999992", "--tokens", "1000000"], "take narrower widths or fewer tokens"),
        (["--widths", "8:16:8", "--tokens", "x"], "--tokens is 'x'"),
    ],
)
def test_bad_cost_requests(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["cost", "--model-dimension", "16", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0] and list(tmp_path.iterdir()) == []
