"""--config FILE and --preset FILE: every option has its key, the command line wins, what is unknown is refused."""

import json
from pathlib import Path

import pytest

from geowidth import cli, records
from geowidth.cli import configuration
from geowidth.errors import UserError
from geowidth.models.presets import Preset, preset_named

EXAMPLES = Path(__file__).parent / "configurations"


def parsed(command, *args):
    parser, _ = cli.parser_for(command)
    return vars(parser.parse_args([str(word) for word in args]))


def written(tmp_path, text, name="settings.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(capsys, *words):
    assert cli.main([str(word) for word in words]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and "Traceback" not in found.err
    return found.err


# A value for every kind of option: as TOML holds it, and as the command line says it.
SAMPLES = {
    "train": (
        {"preset": "pico", "seed": 3, "out": "x", "steps": 7, "learning_rate": 2.5e-5, "corpus": "some text"},
        "--preset pico --seed 3 --out x --steps 7 --learning-rate 2.5e-5 --corpus=some~text",
    ),
    "run": (
        {"arms": ["uniform", "cosine:start=1.6,end=0.4"], "seeds": [0, 4], "geometry": "raw"},
        "--arms uniform cosine:start=1.6,end=0.4 --seeds 0 4 --geometry raw",
    ),
    "measure": (
        {"model": "some/folder", "download": True, "geometries": ["raw", "spherical"], "radius": 0.5},
        "some/folder --download --geometries raw spherical --radius 0.5",
    ),
    "allocate": (
        {
            "layers": 3,
            "exponent": [1, 2.5, 1],
            "mixture": {"topology/raw": 2},
            "option": {"taper": "heads", "heads": 2},
        },
        "--layers 3 --exponent 1,2.5,1 --mixture topology/raw=2 --option taper=heads --option heads=2",
    ),
    "calibrate": ({"factors": [0.5, 2.0], "processes": 2}, "--factors 0.5 2.0 --processes 2"),
    "compare": ({"folders": ["a", "b"], "effect": 0.5, "confidence": 0.9}, "a b --effect 0.5 --confidence 0.9"),
    "plan": ({"task": "run", "preset": "pico", "json": True}, "run --preset pico --json"),
    "cost": ({"widths": "8:64:8", "model-dimension": 8}, "--widths 8:64:8 --model-dimension 8"),
    "export": ({"model": "here", "out": "there", "format": "hf"}, "here --out there --format hf"),
    "slice": (
        {"model": "here", "out": "there", "keep": 0.8, "by": "cosine", "ridge": [0.1, 0.01], "no_correction": True},
        "here --out there --keep 0.8 --by cosine --ridge 0.1,0.01 --no-correction",
    ),
}


def test_every_command_with_a_configuration_has_a_sample():
    assert set(SAMPLES) == set(cli.CONFIGURED)


@pytest.mark.parametrize("command", SAMPLES)
@pytest.mark.parametrize("dashes", [False, True])
def test_a_file_says_what_the_line_says(command, dashes, tmp_path):
    entries, line = SAMPLES[command]
    if dashes:
        entries = {name.replace("_", "-"): value for name, value in entries.items()}
    path = written(tmp_path, json.dumps(entries), "settings.json")
    words = [word.replace("~", " ") for word in line.split()]
    assert parsed(command, "--config", path) == parsed(command, *words)
    assert "config" not in parsed(command, f"--config={path}")


@pytest.mark.parametrize("command", cli.CONFIGURED)
def test_every_option_has_its_key(command, tmp_path):
    """Whatever its type, an option named in a file is found: a wrong value is refused as that option's."""
    parser, _ = cli.parser_for(command)
    for action in parser._actions:
        if action.dest in ("help", "config"):
            continue
        path = written(tmp_path, json.dumps({action.dest: [{"odd": []}]}), "settings.json")
        with pytest.raises(UserError, match=f"settings.json: {action.dest} is "):
            parsed(command, "--config", path)


def test_the_command_line_wins(tmp_path):
    path = written(tmp_path, 'preset = "pico"\nsteps = 7\nout = "there"\nseed = 2\n')
    found = parsed("train", "--steps", 9, "--config", path, "--out=here")
    assert (found["preset"].name, found["steps"], found["out"], found["seed"]) == ("pico", 9, "here", 2)
    path = written(tmp_path, 'folders = ["a"]\nbaseline = "linear"\n')
    assert parsed("compare", "b", "c", "--config", path)["folders"] == ["b", "c"]
    assert parsed("compare", "--config", path, "--", "b")["folders"] == ["b"]
    assert parsed("compare", "--baseline", "cosine", "--config", path)["folders"] == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "settings.toml: key is 'stepz'; allowed: .*steps"),
        ("steps = 2.5", "settings.toml: steps is 2.5; allowed: whole numbers from 1 up"),
        ("steps = true", "settings.toml: steps is True; allowed: a text or a number"),
        ("steps = [1, 2]", "settings.toml: steps is 1,2|settings.toml: steps is '1,2'"),
        ('steps = ""', "settings.toml: steps is empty"),
        ("steps = 1979-05-27", "settings.toml: steps is datetime.date"),
        ('learning-rate = 1\nlearning_rate = 2\nout = "x"', "learning_rate stands there twice"),
        ("steps = ", "settings.toml is not valid TOML"),
        ('preset = "nono"', "settings.toml: preset is 'nono'; allowed: .*nano"),
        ('base = "nono"', "settings.toml: base is 'nono'; allowed: .*nano"),
        ('base = "nano"\npreset = "pico"', "base and preset say the same"),
        ("model = 3", "settings.toml: model is 3; needed: a table"),
        (
            "[model]\nwidths = [3]",
            r"settings.toml: \[model\] lacks vocabulary, layers, dimension, heads, context; give",
        ),
        ('base = "nano"\n[model]\nwidth_list = [3]', r"key in \[model\] is 'width_list'; allowed: .*widths.*width"),
        ('base = "nano"\n[model]\nwidth = 8\nwidths = [8]', "width and widths; give one"),
        ('base = "nano"\n[model]\ndimension = 32', "changes dimension; give width"),
        ('base = "nano"\n[model]\nwidth = "8"', "width is '8'; allowed: whole numbers"),
        ('base = "nano"\n[model]\nactivation = "tanh"', "settings.toml: activation is 'tanh'"),
        ('base = "nano"\n[training]\nbatch = 1.5', "settings.toml: batch is 1.5"),
        ('base = "nano"\n[training]\nlearningrate = 1', r"key in \[training\] is 'learningrate'"),
        ('base = "nano"\n[run]\nseeds = 3', "settings.toml: seeds is 3; needed: a list"),
        ('base = "nano"\n[run]\narms = [1]', "settings.toml: an arm is 1"),
        ('base = "nano"\n[run]\nmultiple = 0', "settings.toml: multiple is 0"),
        ('base = "nano"\nname = "a/b"', "name is 'a/b'; allowed: a text that can name a folder"),
    ],
)
def test_what_a_file_cannot_mean_is_refused_in_one_line(text, message, tmp_path, capsys, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, text)
    assert re.search(message, refused(capsys, "train", "--config", path.name, "--out", "out"))
    assert not (tmp_path / "out").exists()


def test_files_that_are_none_are_refused(tmp_path, capsys):
    assert "no.toml" in refused(capsys, "train", "--config", tmp_path / "no.toml", "--out", tmp_path / "out")
    odd = written(tmp_path, "", "settings.yaml")
    assert "allowed: .toml, .json" in refused(capsys, "train", "--config", odd, "--out", tmp_path / "out")
    assert "empty" in refused(capsys, "train", "--config", "", "--out", tmp_path / "out")
    assert "expected one argument" in refused(capsys, "train", "--out", tmp_path / "out", "--config")
    listed = written(tmp_path, "[]", "settings.json")
    assert "an object" in refused(capsys, "train", "--config", listed, "--out", tmp_path / "out")
    tables = written(tmp_path, "[model]\nlayers = 3")
    assert "key is 'model'" in refused(capsys, "compare", "--config", tables, tmp_path)


def test_tables_change_the_preset(tmp_path):
    path = written(tmp_path, "[model]\nlayers = 2\ncontext = 16\n[training]\nbatch = 2\n[run]\nseeds = [7]\n")
    found = parsed("run", "--preset", "pico", "--config", path)["preset"]
    pico = preset_named("pico")
    assert found.name == "settings" and found.model.widths == (64, 64) and found.model.context == 16
    assert (found.training.batch, found.training.microbatch, found.training.learning_rate) == (2, 2, 4e-3)
    assert found.run.seeds == (7,) and found.run.arms == pico.run.arms
    assert preset_named("pico") == pico


def test_a_preset_named_on_the_line_takes_the_place_of_the_files_base(tmp_path):
    path = written(tmp_path, 'base = "nano"\n[training]\nsteps = 5\n')
    assert parsed("train", "--config", path)["preset"].model == preset_named("nano").model
    found = parsed("train", "--config", path, "--preset", "pico")["preset"]
    assert found.model == preset_named("pico").model and found.training.steps == 5


def test_a_preset_file_is_a_preset(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["train", "--preset", str(EXAMPLES / "wider-pico.toml"), "--out", str(out)]) == 0
    result = records.read_json(out / "result.json")
    assert result["preset"] == "wider-pico" and result["widths"] == [80, 80] and result["steps"] == 3
    assert result["model"]["activation"] == "relu2"
    assert isinstance(preset_named(EXAMPLES / "wider-pico.toml"), Preset)


def test_a_whole_run_from_one_file(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["run", "--config", str(EXAMPLES / "tiny-run.toml"), "--out", str(out), "--steps", "3"]) == 0
    results = [records.read_json(path) for path in sorted(out.glob("arms/*/seed-*/result.json"))]
    assert len(results) == 4 and {result["steps"] for result in results} == {3}
    assert {result["preset"] for result in results} == {"tiny"}
    assert all(result["model"]["activation"] == "gelu" for result in results)
    budgets = {result["arm"]: result["parameters"] for result in results}
    assert len(set(budgets.values())) == 1
    schedules = [records.read_json(path) for path in out.glob("schedules/*.json")]
    assert {schedule["settings"]["projections"] for schedule in schedules} == {2}


def test_a_run_needs_a_preset_of_one_width(tmp_path, capsys):
    path = written(tmp_path, 'base = "pico"\n[model]\nwidths = [80, 72, 56, 48]\n')
    assert "one width" in refused(capsys, "run", "--config", path, "--out", tmp_path / "out")


def test_help_names_the_option(capsys):
    assert configuration.FLAG in cli.parser_for("train")[0].format_help()
