"""Cases of allocation: what a schedule states is kept or refused by name."""

import pytest
from work_profiles import make_profile

from geowidth import cli, records
from geowidth.allocate import (
    LinearCost,
    Problem,
    Schedule,
    Shape,
    Surrogate,
    TableCost,
    allocate,
    calibrated_surrogate,
    linear_cost,
    round_widths,
    solve_surrogate,
)
from geowidth.allocate.schedules import Rule
from geowidth.errors import UserError
from geowidth.models.ffn import FeedForward


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


def test_M1_heads_of_a_schedule_are_trained(heads_file, tmp_path):
    from geowidth.models import load_model

    out = tmp_path / "run"
    words = ["train", "--preset", "pico", "--schedule", heads_file, "--steps", 1, "--out", out]
    assert cli.main([str(word) for word in words]) == 0
    model = load_model(out)
    assert model.config.layer_heads == (3, 2, 2, 1) and model.config.widths == (64,) * 4
    size = 16
    for block, heads in zip(model.blocks, (3, 2, 2, 1), strict=True):
        assert tuple(block.attention.qkv.shape) == (3 * heads * size, 32)
        assert tuple(block.attention.out.shape) == (32, heads * size)
    result = records.read_json(out / "result.json")
    assert result["arm"] == "cascade" and result["model"]["layer_heads"] == [3, 2, 2, 1]
    assert result["parameters"] == model.parameter_count() == model.config.parameters


def test_M1_heads_of_a_schedule_are_planned(heads_file, monkeypatch):
    from geowidth.models.presets import preset_named
    from geowidth.plan import estimation

    asked = []

    def probe(request):
        asked.append(request)
        return {"step": 1.0, "window": 0.1, "seconds": [1.0] * len(request.get("sizes", ())), "peak_bytes": 1}

    monkeypatch.setattr(estimation, "run_probe", probe)
    for task in ("train", "measure"):
        assert cli.main(["plan", task, "--preset", "pico", "--schedule", str(heads_file)]) == 0
    assert [request["model"]["layer_heads"] for request in asked] == [[3, 2, 2, 1]] * 2
    assert preset_named("pico").model.layer_heads is None


def test_M1_heads_of_another_model_are_refused(heads_file, tmp_path, capsys):
    out = tmp_path / "run"
    more = tmp_path / "more.json"
    allocate("cascade", layers=4, base_width=64, quantum=8, taper="heads", heads=4).write(more)
    found = refused(capsys, "train", "--preset", "pico", "--schedule", more, "--steps", 1, "--out", out)
    assert (
        "16 attention heads in all, the model of geowidth train 8: allocate with heads=2" in found and not out.exists()
    )


def test_M1_export_writes_heads_of_a_schedule_or_refuses_them(heads_file, tmp_path, capsys):
    config = tmp_path / "config.json"
    facts = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    facts |= {"num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 32}
    records.write_json(config, facts)
    out = tmp_path / "exported"
    words = ["export", "--schedule", heads_file, "--family", config, "--out", out]
    assert "heads 3 2 2 1 by layer" in refused(capsys, *words, "--format", "megatron") and not out.exists()
    records.write_json(config, {**facts, "num_key_value_heads": 1})
    assert "2 heads share a key" in refused(capsys, *words) and not out.exists()
    records.write_json(config, {**facts, "num_attention_heads": 1})
    assert "8 attention heads in all" in refused(capsys, *words) and not out.exists()
    records.write_json(config, facts)
    assert cli.main([str(word) for word in words]) == 0
    assert records.read_json(out / "config.json")["layer_attention_heads"] == [3, 2, 2, 1]


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


@pytest.mark.parametrize("width", [2**33, 2**45, 2**53])
def test_wide_schedules_are_refused_before_memory_is_taken(width, tmp_path, capsys):
    path, out = tmp_path / "schedule.json", tmp_path / "run"
    record = {"kind": "geowidth.schedule", "schema": 1, "name": "wide", "widths": [64, width, 64, 64], "budget": {}}
    records.write_json(path, record)
    for words in (["train", "--out", out], ["plan", "train"], ["plan", "measure"]):
        line = refused(capsys, *words, "--preset", "pico", "--schedule", path)
        assert "bytes" in line and "use narrower widths" in line
    assert not out.exists()
    with pytest.raises(UserError, match="use a narrower one"):
        FeedForward(32, width)


WORK_LIES = {
    "width of 0": {"widths": [64, 0, 64, 64]},
    "negative width": {"widths": [64, -1, 64, 64]},
    "width as a float": {"widths": [64, 64.0, 64, 64]},
    "no widths": {"widths": []},
    "fewer widths": {"widths": [64, 64, 64]},
    "no signal": {"work": {}},
    "work as a list": {"work": [1, 2, 3, 4]},
    "negative work": {"work": {"hyperbolic": {"topology": [1.0, -1.0, 1.0, 1.0]}}},
    "unknown work": {"work": {"hyperbolic": {"topology": [1.0, float("nan"), 1.0, 1.0]}}},
    "endless work": {"work": {"hyperbolic": {"topology": [1.0, float("inf"), 1.0, 1.0]}}},
    "work of 400 digits": {"work": {"hyperbolic": {"topology": [1.0, 10**400, 1.0, 1.0]}}},
    "work as text": {"work": {"hyperbolic": {"topology": [1.0, "1", 1.0, 1.0]}}},
    "work as true": {"work": {"hyperbolic": {"topology": [1.0, True, 1.0, 1.0]}}},
    "nested work": {"work": {"hyperbolic": {"topology": [1.0, [1.0], 1.0, 1.0]}}},
    "dimension of 0": {"dimension": {"twonn_mle": [8.0, 0.0, 8.0, 8.0]}},
    "unknown dimension": {"dimension": {"twonn_mle": [8.0, float("nan"), 8.0, 8.0]}},
    "no dimension": {"dimension": {}},
    "model dimension of 0": {"model_dimension": 0},
    "model dimension of 400 digits": {"model_dimension": 10**400},
    "model dimension of 30 digits": {"model_dimension": 10**30},
    "projections": {"projections": 4},
    "details as text": {"details": "none"},
    "settings as a list": {"settings": []},
    "experts of 0": {"experts": [[0, 0]] * 4},
    "more experts visited than there are": {"experts": [[2, 3]] * 4},
    "experts that do not divide the width": {"experts": [[3, 1]] * 4},
    "experts of fewer layers": {"experts": [[2, 1]] * 3},
    "experts as a number": {"experts": 4},
    "experts as numbers": {"experts": [2, 2, 2, 2]},
    "unknown field": {"routers": [1, 1, 1, 1]},
    "newer schema": {"schema": 2},
}


@pytest.mark.parametrize("lie", WORK_LIES)
def test_lies_in_a_work_file_are_one_line(lie, tmp_path, capsys):
    path, out = tmp_path / "work.json", tmp_path / "schedule.json"
    make_profile(4, width=64).write(path)
    records.write_json(path, records.read_json(path) | WORK_LIES[lie])
    line = refused(capsys, "allocate", "--work", path, "--out", out)
    assert len(line) < 700 and not out.exists()


COST_LIES = {
    "width of 0": {"widths": [0, 16, 32]},
    "width of 2^33": {"widths": [8, 16, 2**33]},
    "fraction": {"widths": [8, 16.5, 32]},
    "text": {"widths": [8, "16", 32]},
    "true": {"widths": [True, 16, 32]},
    "falling widths": {"widths": [8, 32, 16]},
    "repeated widths": {"widths": [8, 8, 32]},
    "no widths": {"widths": []},
    "widths as a number": {"widths": 8},
    "times of 0": {"milliseconds": [0.0, 1.0, 2.0]},
    "falling times": {"milliseconds": [1.0, 3.0, 2.0]},
    "unknown times": {"milliseconds": [1.0, float("nan"), 2.0]},
    "endless times": {"milliseconds": [1.0, 2.0, float("inf")]},
    "times as text": {"milliseconds": ["1", "2", "3"]},
    "times of 400 digits": {"milliseconds": [1.0, 2.0, 10**400]},
    "fewer times": {"milliseconds": [1.0, 2.0]},
    "projections": {"projections": 7},
    "model dimension": {"model_dimension": "sixteen"},
    "newer schema": {"schema": 2},
}


@pytest.mark.parametrize("lie", COST_LIES)
def test_lies_in_a_cost_table_are_one_line(lie, tmp_path, capsys):
    path, out = tmp_path / "cost.json", tmp_path / "schedule.json"
    words = ["allocate", "--schedule", "cosine", "--layers", 3, "--base", 16, "--cost", path, "--out", out]
    records.write_json(path, TableCost([8, 16, 32], [1.0, 2.0, 4.0]).to_json())
    assert cli.main([str(word) for word in words]) == 0
    capsys.readouterr()
    out.unlink()
    records.write_json(path, TableCost([8, 16, 32], [1.0, 2.0, 4.0]).to_json() | COST_LIES[lie])
    assert len(refused(capsys, *words)) < 700 and not out.exists()


def test_M1_a_cost_table_of_other_FFNs_is_refused():
    table = TableCost([8, 16, 32], [1.0, 2.0, 4.0], {"model_dimension": 64, "projections": 2})
    asked = {"layers": 3, "base_width": 16, "cost_table": table}
    assert allocate("cosine", **asked, model_dimension=64).details["ffn_parameters"] % (2 * 64) == 0
    with pytest.raises(UserError, match="measured at projections 2, not 3"):
        allocate("cosine", **asked, projections=3)
    with pytest.raises(UserError, match="measured at model dimension 64, not 32"):
        allocate("cosine", **asked, model_dimension=32)


SPELLINGS = ("1e3", "-1", "1e400", "nan", "inf", "1_000", "٣", "16.0", " 16", "0x10", "+16", "1e-3", "", "1" * 5000)


@pytest.mark.parametrize("flag", ["--budget", "--base", "--layers", "--multiple", "--model-dimension", "--seed"])
@pytest.mark.parametrize("spelling", [*SPELLINGS, "0"])
def test_odd_spellings_of_whole_numbers_are_refused(flag, spelling, capsys):
    given = {"--layers": "4", "--base": "64"} if flag != "--budget" else {"--layers": "4"}
    words = [word for name, value in {**given, flag: spelling}.items() for word in (f"{name}={value}",)]
    if (flag, spelling) in (("--seed", "0"),):
        assert cli.main(["allocate", "--schedule", "uniform", *words]) == 0
    else:
        line = refused(capsys, "allocate", "--schedule", "uniform", *words)
        assert flag in line or "budget" in line


@pytest.mark.parametrize("spelling", ["nan", "inf", "-1", "0", "1_000", "٣", "1e400", " 16", "0x10", "x", "16y", ""])
@pytest.mark.parametrize("flag", ["--floor", "--cap", "--floor x", "--cap x", "--exponent"])
def test_odd_spellings_of_numbers_are_refused(flag, spelling, tmp_path, capsys):
    name, times = flag.partition(" ")[::2]
    make_profile(4, width=64).write(tmp_path / "work.json")
    refused(capsys, "allocate", "--work", tmp_path / "work.json", f"{name}={spelling}{times}")


OPTION_WORDS = {
    "twice": (["start=1.5", "start=2"], "gives start twice"),
    "unknown": (["strat=1.5"], "no option 'strat'; allowed: start, end"),
    "of another schedule": (["sharpness=3"], "no option 'sharpness'"),
    "a flag": (["layers=4"], "not an option of a schedule"),
    "no value": (["start"], "allowed: NAME=VALUE"),
    "no name": (["=1"], "allowed: NAME=VALUE"),
    "underscore": (["start=1_0"], "start is '1_0'"),
    "Arabic digit": (["start=٣"], "start is '٣'"),
    "beyond float64": (["start=1e400"], "start is "),
    "5,000 digits": (["start=" + "1" * 5000], "start is "),
    "deep": (["start=" + "[" * 100_000], "start is "),
    "list": (["start=[1]"], "start is [1]"),
    "text": (['start="1"'], "start is '1'"),
    "true": (["start=true"], "start is True"),
    "null": (["start=null"], "start is None"),
    "zero": (["start=0"], "start is 0"),
}


@pytest.mark.parametrize("kind", OPTION_WORDS)
def test_options_of_schedules_are_refused_by_name(kind, capsys):
    options, words = OPTION_WORDS[kind]
    given = [word for option in options for word in ("--option", option)]
    line = refused(capsys, "allocate", "--schedule", "cosine", "--layers", 4, "--base", 64, *given)
    assert words in line and len(line) < 700


@pytest.mark.parametrize(
    "words", [["--layers", "4", "--layers=8"], ["--base=64", "--base=64"], ["--cap", "9", "--cap", "8"]]
)
def test_flags_given_twice_are_refused(words, capsys):
    flag = words[0].partition("=")[0]
    others = [] if flag == "--base" else ["--base", "64"]
    line = refused(capsys, "allocate", "--schedule", "cosine", *others, *words)
    assert f"argument {flag}: it came twice" in line
    assert "argument --widths: it came twice" in refused(capsys, "cost", "--widths=8:16:8", "--widths", "8:16:8")


def test_a_signal_of_a_mixture_given_twice_is_refused(tmp_path, capsys):
    make_profile(4, width=64).write(tmp_path / "work.json")
    words = ["--work", tmp_path / "work.json", "--mixture", "raw/shift=1,raw/shift=2"]
    assert "gives raw/shift twice" in refused(capsys, "allocate", *words)


ODD = (True, "4", None, 1.5, float("nan"), float("inf"), 10**400, -1, [4], {}, b"4", 4j, object())
NAMED = {
    "schedule": lambda odd: allocate(odd, layers=4, base_width=64),
    "layers": lambda odd: allocate("cosine", layers=odd, base_width=64),
    "base width": lambda odd: allocate("cosine", layers=4, base_width=odd),
    "budget": lambda odd: allocate("cosine", layers=4, budget=odd),
    "budget unit": lambda odd: allocate("cosine", layers=4, base_width=64, unit=odd),
    "model dimension": lambda odd: allocate("cosine", layers=4, base_width=64, model_dimension=odd),
    "projections": lambda odd: allocate("cosine", layers=4, base_width=64, model_dimension=32, projections=odd),
    "biases": lambda odd: allocate("cosine", layers=4, base_width=64, model_dimension=32, biases=odd),
    "cost table": lambda odd: allocate("cosine", layers=4, base_width=64, cost_table=odd),
    "work": lambda odd: allocate("geometry", work=odd),
    "quantum": lambda odd: allocate("cosine", layers=4, base_width=64, quantum=odd),
    "tensor parallel": lambda odd: allocate("cosine", layers=4, base_width=64, tensor_parallel=odd),
    "number of different": lambda odd: allocate("cosine", layers=4, base_width=64, max_distinct_widths=odd),
    "floor": lambda odd: allocate("cosine", layers=4, base_width=64, floor=odd),
    "cap": lambda odd: allocate("cosine", layers=4, base_width=64, cap=odd),
    "control": lambda odd: allocate("cosine", layers=4, base_width=64, control=odd),
    "seed": lambda odd: allocate("cosine", layers=4, base_width=64, seed=odd),
    "heads": lambda odd: allocate("cascade", layers=4, base_width=64, taper="heads", heads=odd),
    "frame": lambda odd: allocate("framed", layers=4, base_width=64, frame=odd),
    "waist": lambda odd: allocate("bow_tie", layers=4, base_width=64, waist=odd),
    "of another": lambda odd: allocate("reversed", layers=4, base_width=64, of=odd),
    "exponent": lambda odd: allocate(work=make_profile(4), exponent=odd),
    "sensitivity": lambda odd: allocate(work=make_profile(4), sensitivity=odd),
    "mixture": lambda odd: allocate(work=make_profile(4), mixture=odd),
    "weight": lambda odd: allocate(work=make_profile(4), mixture={"raw/shift": odd}),
    "geometry": lambda odd: allocate(work=make_profile(4), geometry=odd),
    "smoothing": lambda odd: allocate(work=make_profile(4), smoothing=odd),
    "calibration": lambda odd: allocate("calibrated", layers=4, base_width=64, calibration=odd),
    "coefficient": lambda odd: Surrogate([1.0, odd], [1.0, 1.0]),
    "exponents": lambda odd: Surrogate([1.0, 1.0], odd),
    "difficulty": lambda odd: calibrated_surrogate([1.0, 1.0], odd, 1.0),
    "cost": lambda odd: solve_surrogate(Surrogate([1.0], [1.0]), odd, 10.0, 1.0, 20.0),
    "solved budget": lambda odd: solve_surrogate(Surrogate([1.0], [1.0]), 1.0, odd, 1.0, 20.0),
    "solved floor": lambda odd: solve_surrogate(Surrogate([1.0], [1.0]), 1.0, 10.0, odd, 20.0),
    "solved cap": lambda odd: solve_surrogate(Surrogate([1.0], [1.0]), 1.0, 10.0, 1.0, odd),
    "surrogate": lambda odd: solve_surrogate(odd, 1.0, 10.0, 1.0, 20.0),
    "objective": lambda odd: round_widths(odd, linear_cost("width", 1), 10, [1.0], [20.0], 1),
    "rounded cost": lambda odd: round_widths(Surrogate([1.0], [1.0]), odd, 10, [1.0], [20.0], 1),
    "rounded budget": lambda odd: round_widths(Surrogate([1.0], [1.0]), linear_cost("width", 1), odd, 1.0, 20.0, 1),
    "rounded floor": lambda odd: round_widths(Surrogate([1.0], [1.0]), linear_cost("width", 1), 10, odd, 20.0, 1),
    "step": lambda odd: round_widths(Surrogate([1.0], [1.0]), linear_cost("width", 1), 10, 1.0, 20.0, odd),
    "tied": lambda odd: round_widths(Surrogate([1.0], [1.0]), linear_cost("width", 1), 10, 1.0, 20.0, 1, odd),
    "unit": lambda odd: linear_cost(odd, 4),
    "linear layers": lambda odd: linear_cost("width", odd),
    "experts": lambda odd: linear_cost("width", 4, experts=odd),
    "per_width": lambda odd: LinearCost("width", odd, [0]),
    "table": lambda odd: TableCost(odd, [1.0]),
    "times": lambda odd: TableCost([8], odd),
    "problem": lambda odd: Problem(odd),
    "rule": lambda odd: allocate(Rule("own", "x", lambda problem: odd), layers=4, base_width=64),
    "shape": lambda odd: allocate(Rule("own", "x", lambda problem: Shape(odd)), layers=4, base_width=64),
    "ties": lambda odd: allocate(Rule("own", "x", lambda p: Shape([1] * 4, tied=odd)), layers=4, base_width=64),
    "widths": lambda odd: Schedule("x", odd, None, {}, 1),
    "schedule budget": lambda odd: Schedule("x", (8,), None, odd, 1),
    "schedule quantum": lambda odd: Schedule("x", (8,), None, {}, odd),
    "schedule name": lambda odd: Schedule(odd, (8,), None, {}, 1),
    "schedule details": lambda odd: Schedule("x", (8,), None, {}, 1, {}, odd),
    "path": lambda odd: Schedule.read(odd),
}


@pytest.mark.parametrize("name", NAMED)
def test_wrong_arguments_are_user_errors_of_one_line(name):
    refusals = 0
    for odd in ODD:
        try:
            NAMED[name](odd)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
            refusals += 1
    assert refusals >= 7
