"""Totals of a schedule are those of the built model, for every schedule; experts are counted."""

import numpy as np
import pytest
from torch import nn
from work_profiles import make_profile

from geowidth import cli, records
from geowidth.allocate import Schedule, allocate, linear_cost, schedule_names
from geowidth.allocate.schedules import BUILT_IN, CONTROLS
from geowidth.artifacts.calibration import KIND, SCHEMA, Calibration
from geowidth.errors import UserError
from geowidth.models.ffn import FeedForward


def built_parameters(widths, dimension, gated, biases, experts=None):
    """Distinct parameters of FFNs of these widths, counted in the modules themselves. experts: FFNs a layer."""
    activation = "swiglu" if gated else "gelu"
    counts = [1] * len(widths) if experts is None else experts
    layers = [
        FeedForward(dimension, width, activation, bias=biases, device="meta")
        for width, count in zip(widths, counts, strict=True)
        for _ in range(count)
    ]
    return sum(parameter.numel() for parameter in {*nn.ModuleList(layers).parameters()})


def calibration_file(folder, layers, generator):
    """A calibration.json of `layers` layers with the fields that allocation reads."""
    rows = [{"difficulty": d, "exponent": 0.3, "determined": True} for d in generator.gamma(1, 1, layers).tolist()]
    shared = {"exponent": 0.4, "exponent_interval": [0.1, 0.9], "difficulty": [r["difficulty"] for r in rows]}
    value = dict.fromkeys(Calibration.__dataclass_fields__) | {"layers": rows, "shared": shared}
    path = folder / f"calibration-{layers}.json"
    records.write_json(path, value | {"kind": KIND, "schema": SCHEMA, "widths": [256] * layers})
    return path


def random_request(name, generator, folder):
    """Keyword arguments of `allocate` for a schedule, and (gated, biases) of the model."""
    layers, quantum = int(generator.integers(1, 13)), int(generator.choice([1, 2, 8, 64]))
    gated, biases = bool(generator.integers(2)), bool(generator.integers(2))
    base = int(quantum * generator.integers(4, 40) + generator.integers(0, quantum))
    asked = {"model_dimension": int(generator.integers(1, 200)), "projections": 3 if gated else 2, "biases": biases}
    asked |= {"layers": layers, "base_width": base, "quantum": quantum, "seed": int(generator.integers(9))}
    if generator.random() < 0.4:
        asked |= {"floor": int(quantum * generator.integers(1, 3)), "cap": int(base * generator.integers(2, 5))}
    other = name
    if name in CONTROLS:
        other = str(generator.choice([rule for rule in BUILT_IN if rule not in CONTROLS]))
        asked["of"] = other
    if other == "geometry":
        asked["work"] = make_profile(layers, seed=int(generator.integers(99)))
    if other == "calibrated":
        asked["calibration"] = calibration_file(folder, layers, generator)
    return asked, gated, biases


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_total_of_every_schedule_is_that_of_the_built_model(name, tmp_path):
    generator = np.random.default_rng(BUILT_IN.index(name))
    for _ in range(25):
        asked, gated, biases = random_request(name, generator, tmp_path)
        found = allocate(name, **asked)
        dimension, quantum, base = asked["model_dimension"], asked["quantum"], asked["base_width"]
        total = built_parameters(found.widths, dimension, gated, biases)
        assert found.details["ffn_parameters"] == found.budget["spent"] == total
        assert found.budget["value"] == built_parameters([base] * found.layers, dimension, gated, biases)
        assert total <= found.budget["value"] and all(width % quantum == 0 for width in found.widths)
        floor, cap = asked.get("floor", 1), asked.get("cap", np.inf)
        assert all(floor <= width <= cap for width in found.widths)
        # What is left buys no further step: of one layer, or of all that share a width by rule.
        left, step = found.budget["value"] - total, built_parameters([quantum], dimension, gated, False)
        step += (2 if gated else 1) * quantum * biases
        tied = name in ("uniform", "groups") or asked.get("of") in ("uniform", "groups")
        bounds = np.array([c if c is not None else np.inf for c in found.settings["cap"]])
        if (np.array(found.widths) + quantum <= bounds).all():
            assert left < step * (found.layers if tied else 1)
        found.write(tmp_path / "schedule.json")
        assert Schedule.read(tmp_path / "schedule.json").widths == found.widths


def test_there_are_eighteen_schedules():
    assert len(BUILT_IN) == 18 and [*BUILT_IN] == schedule_names()[:18]


@pytest.mark.parametrize("counts", [[(4, 2)] * 6, [(8, 1), (2, 2), (1, 1), (4, 2), (8, 2), (4, 4)]])
@pytest.mark.parametrize("quantum", [1, 16])
def test_experts_are_counted_in_the_budget_and_in_the_total(counts, quantum):
    """The work profile of a mixture holds the width of all experts together; a schedule holds that of each."""
    total, active = zip(*counts, strict=True)
    profile = make_profile(6, widths=tuple(96 * count for count in total), experts=tuple(counts))
    found = allocate(work=profile, quantum=quantum)
    assert found.base_width == 96
    assert found.budget["value"] == built_parameters([96] * 6, 128, True, False, total)
    assert found.details["ffn_parameters"] == built_parameters(found.widths, 128, True, False, total)
    left = found.budget["value"] - found.budget["spent"]
    assert 0 <= left < 3 * 128 * quantum * min(total) and all(width % quantum == 0 for width in found.widths)
    assert any("experts" in note for note in found.details["notes"])
    flops = allocate(work=profile, quantum=quantum, unit="flops")
    assert flops.budget["spent"] == sum(2 * 3 * 128 * w * a for w, a in zip(flops.widths, active, strict=True))
    width = allocate(work=profile, quantum=quantum, unit="width")
    assert width.budget == {"unit": "width", "value": 96 * sum(total), "spent": int(np.dot(width.widths, total))}


def test_equal_experts_get_the_widths_of_a_dense_model_with_their_width():
    dense = make_profile(6, width=96)
    mixture = make_profile(6, widths=(4 * 96,) * 6, experts=((4, 2),) * 6)
    assert allocate(work=mixture, quantum=8).widths == allocate(work=dense, quantum=8).widths


def test_schedules_of_experts_are_refused_by_plain_models(tmp_path, capsys):
    path = tmp_path / "schedule.json"
    allocate(work=make_profile(4, widths=(256,) * 4, experts=((4, 2),) * 4, model_dimension=32)).write(path)
    assert cli.main(["train", "--preset", "pico", "--schedule", str(path), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "mixture of experts" in error and error.count("\n") == 1 and not (tmp_path / "run").exists()
    value = records.read_json(path)
    value["settings"]["experts"] = [4, 4, 4, 8]
    records.write_json(path, value)
    with pytest.raises(UserError, match="its widths make"):
        Schedule.read(path)


def test_a_mixture_measured_before_experts_were_counted_is_refused():
    old = make_profile(4, widths=(256,) * 4, settings={"clouds": {"family": "mixtral"}})
    with pytest.raises(UserError, match="does not say how many there are; measure again"):
        allocate(work=old)


def test_experts_have_no_budget_in_milliseconds():
    from geowidth.allocate import TableCost

    profile = make_profile(4, widths=(256,) * 4, experts=((4, 2),) * 4)
    with pytest.raises(UserError, match="of a mixture of experts; use another unit"):
        allocate(work=profile, cost_table=TableCost([16, 64], [1.0, 2.0]))
    with pytest.raises(UserError, match="active experts is 3; allowed: up to the experts, 2"):
        linear_cost("flops", 2, 16, experts=2, active_experts=3)


def test_capture_says_how_many_experts_a_layer_has(tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.measure import capture
    from geowidth.measure.pipeline import MeasureSettings, measure_clouds

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config).eval()
    clouds = capture(model, torch.arange(64).repeat(4), 24, context=16)
    assert clouds.experts == ((4, 2), (4, 2)) and clouds.widths == (4 * 48, 4 * 48)
    clouds.write(tmp_path / "clouds.safetensors")
    assert type(clouds).read(tmp_path / "clouds.safetensors").experts == clouds.experts
    measure_clouds(clouds, MeasureSettings(geometries=("raw",), statistics=("shift",)), out=tmp_path / "work.json")
    profile = WorkProfile.read(tmp_path / "work.json")
    assert profile.experts == ((4, 2), (4, 2))
    found = allocate(work=profile, geometry="raw", statistic="shift", exponent=0.5)
    ffn = sum(p.numel() for n, p in model.named_parameters() if "experts" in n)
    assert found.base_width == 48 and found.budget["value"] == ffn


CALIBRATION_LIES = {
    "difficulty of 400 digits": {"difficulty": [1.0, 2.0, 3.0, 10**400]},
    "unknown difficulty": {"difficulty": [1.0, 2.0, 3.0, float("nan")]},
    "endless difficulty": {"difficulty": [1.0, 2.0, 3.0, float("inf")]},
    "fewer difficulties": {"difficulty": [1.0, 2.0, 3.0]},
    "difficulty as text": {"difficulty": "abcd"},
    "negative exponent": {"exponent": -1.0},
    "unknown exponent": {"exponent": float("nan")},
    "exponent as text": {"exponent": "1"},
    "interval as a number": {"exponent_interval": 5},
    "interval of one": {"exponent_interval": [1.0]},
    "interval of texts": {"exponent_interval": ["a", "b"]},
}


@pytest.mark.parametrize("lie", CALIBRATION_LIES)
def test_lies_in_a_calibration_are_one_line(lie, tmp_path, capsys):
    path = calibration_file(tmp_path, 4, np.random.default_rng(0))
    words = ["allocate", "--schedule", "calibrated", "--layers", "4", "--base", "64", "--calibration", str(path)]
    assert cli.main(words) == 0
    value = records.read_json(path)
    records.write_json(path, value | {"shared": value["shared"] | CALIBRATION_LIES[lie]})
    capsys.readouterr()
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 700


@pytest.mark.parametrize(
    "lie", [{"widths": [0] * 4}, {"widths": ["64"] * 4}, {"layers": 4}, {"shared": []}, {"extra": 1}]
)
def test_lies_in_the_rest_of_a_calibration_are_one_line(lie, tmp_path):
    path = calibration_file(tmp_path, 4, np.random.default_rng(0))
    records.write_json(path, records.read_json(path) | lie)
    with pytest.raises(UserError):
        allocate("calibrated", layers=4, base_width=64, calibration=path)
