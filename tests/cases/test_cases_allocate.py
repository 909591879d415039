"""Cases of allocation: what a schedule states is kept or refused by name."""

import pytest

from geowidth import cli, records
from geowidth.allocate import Schedule, allocate
from geowidth.errors import UserError


def refused(capsys, *words):
    """The one line that a command answers bad input with; it must leave code 2, no output and no traceback."""
    assert cli.main([str(word) for word in words]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and found.err.startswith("geowidth: ")
    return found.err


@pytest.fixture
def heads_file(tmp_path):
    """The schedule of case M1, for the pico preset: 4 layers, 2 heads of the uniform model."""
    path = tmp_path / "heads.json"
    allocate("cascade", layers=4, base_width=64, quantum=8, taper="heads", heads=2).write(path)
    return path


def test_M1_heads_of_a_schedule_are_refused_where_every_layer_gets_the_same(heads_file, tmp_path, capsys):
    out = tmp_path / "run"
    for words in (
        ["train", "--preset", "pico", "--schedule", heads_file, "--steps", 1, "--out", out],
        ["plan", "train", "--preset", "pico", "--schedule", heads_file],
        ["plan", "measure", "--preset", "pico", "--schedule", heads_file],
    ):
        assert "heads 3 2 2 1 by layer" in refused(capsys, *words)
    assert not out.exists()


def test_M1_export_refuses_heads_of_a_schedule(heads_file, tmp_path, capsys):
    config = tmp_path / "config.json"
    facts = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    facts |= {"num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 32}
    records.write_json(config, facts)
    out = tmp_path / "exported"
    for form in ("hf", "megatron"):
        words = ["export", "--schedule", heads_file, "--family", config, "--format", form, "--out", out]
        assert "heads 3 2 2 1 by layer" in refused(capsys, *words)
    assert not out.exists()


def test_M1_heads_that_are_the_models_own_are_no_reason_to_refuse():
    found = allocate("cascade", layers=4, base_width=64, taper="both", heads=2, start=1.01, end=1.0)
    assert found.heads == [2, 2, 2, 2]
    assert found.widths_for("a test", layers=4, dimension=32, heads=2) == found.widths
    with pytest.raises(UserError, match="gives every layer 4"):
        found.widths_for("a test", layers=4, dimension=32, heads=4)


@pytest.mark.parametrize("sizes", [{"dimension": 64}, {"projections": 2}, {"biases": True}, {"layers": 5}])
def test_M1_a_budget_counted_for_another_model_is_refused(sizes):
    found = allocate("cosine", layers=4, base_width=64, model_dimension=32)
    own = {"layers": 4, "dimension": 32, "heads": 2}
    assert found.widths_for("a test", **own) == found.widths
    with pytest.raises(UserError, match="allocate for"):
        found.widths_for("a test", **own | sizes)


LIES = {
    "width of 0": {"widths": [64, 64, 0, 64]},
    "negative width": {"widths": [64, -8, 64, 64]},
    "fraction": {"widths": [64, 64.5, 64, 64]},
    "whole float": {"widths": [64, 64.0, 64, 64]},
    "text": {"widths": [64, "64", 64, 64]},
    "true": {"widths": [64, True, 64, 64]},
    "nothing": {"widths": [64, None, 64, 64]},
    "nested": {"widths": [64, [64], 64, 64]},
    "no widths": {"widths": []},
    "widths as a number": {"widths": 64},
    "400 digits": {"widths": [64, 10**400, 64, 64]},
    "other total": {"widths": [64, 72, 64, 64]},
    "layers": {"layers": 5},
    "layers as a float": {"layers": 4.0},
    "layers as true": {"layers": True},
    "off the quantum": {"quantum": 16, "widths": [64, 72, 56, 64]},
    "quantum 0": {"quantum": 0},
    "quantum true": {"quantum": True},
    "base of 0": {"base_width": 0},
    "base as text": {"base_width": "64"},
    "spent too much": {"budget": {"unit": "width", "value": 255, "spent": 256}},
    "spent as text": {"budget": {"unit": "width", "value": 256, "spent": "256"}},
    "spent unknown": {"budget": {"unit": "width", "value": 256, "spent": float("nan")}},
    "endless budget": {"budget": {"unit": "width", "value": float("inf"), "spent": 256}},
    "unit": {"budget": {"unit": "neurons", "value": 256, "spent": 256}},
    "unit as a list": {"budget": {"unit": ["width"], "value": 256, "spent": 256}},
    "parameters": {"details": {"ffn_parameters": 5}, "settings": {"model_dimension": 32}},
    "dimension": {"settings": {"model_dimension": -4}, "budget": {"unit": "parameters", "value": 8, "spent": 8}},
    "heads for fewer layers": {"details": {"heads": [2, 2]}},
    "heads as a number": {"details": {"heads": 2}},
    "heads of 0": {"details": {"heads": [2, 2, 0, 2]}},
    "name": {"name": 7},
    "unknown field": {"experts_per_layer": [2, 2, 2, 2]},
    "newer schema": {"schema": 2},
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_in_a_schedule_file_are_one_line(lie, tmp_path, capsys):
    path, out = tmp_path / "schedule.json", tmp_path / "run"
    honest = allocate("uniform", layers=4, base_width=64, quantum=8).to_json()
    records.write_json(path, honest)
    assert Schedule.read(path).widths == (64,) * 4
    records.write_json(path, honest | LIES[lie])
    line = refused(capsys, "train", "--preset", "pico", "--schedule", path, "--out", out)
    assert len(line) < 700 and str(path) in line and not out.exists()
