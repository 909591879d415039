"""`allocate` as people call it: measured work, budgets in every unit, bounds, records, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work_profiles import GEOMETRIES, STATISTICS, make_profile

from geowidth import records
from geowidth.allocate import Schedule, allocate
from geowidth.artifacts.cost import TableCost
from geowidth.errors import UserError


def test_geometry_from_work_in_memory_and_from_file(profile, work_file):
    found = allocate(work=profile, quantum=8)
    assert allocate("geometry", work=str(work_file), quantum=8).widths == found.widths
    assert found.base_width == 344 and found.quantum == 8
    assert found.budget == {"unit": "parameters", "value": 8 * 3 * 128 * 344, "spent": 8 * 3 * 128 * 344}
    assert found.details["kkt_residual"] < 1e-12 and found.details["predicted_ratio"] < 1
    assert found.details["predicted_ratio_rounded"] == pytest.approx(found.details["predicted_ratio"], rel=1e-3)
    assert found.details["work"] == profile.signal("topology", "hyperbolic")
    assert found.details["exponents"] == pytest.approx([2 / d for d in profile.dimension["twonn_mle"]])
    assert np.abs(np.array(found.widths) - found.details["real_widths"]).max() < 8
    assert found.settings["geometry"] == "hyperbolic" and found.settings["cap"] == [4 * 344] * 8


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_all_nine_signals(profile, geometry, statistic):
    found = allocate(work=profile, geometry=geometry, statistic=statistic, exponent=0.2, smoothing=False)
    assert found.details["work"] == profile.work[geometry][statistic]
    order = np.argsort(profile.work[geometry][statistic])
    assert (np.diff(np.array(found.widths)[order]) >= 0).all()


def test_a_mixture_of_one_is_that_signal_and_units_do_not_matter(profile):
    alone = allocate(work=profile, geometry="raw", statistic="shift")
    assert allocate(work=profile, mixture={"shift/raw": 3}).widths == alone.widths
    assert allocate(work=profile, mixture={"raw/shift": 3}).widths == alone.widths  # as earlier versions named it
    pair = {"shift/raw": 1, "gw/hyperbolic": 2}
    mixed = allocate(work=profile, mixture=pair)
    scaled = {
        g: {s: [1000 * v if g == "raw" else v for v in row] for s, row in t.items()} for g, t in profile.work.items()
    }
    assert allocate(work=make_profile(work=scaled), mixture=pair).widths == mixed.widths != alone.widths


def test_sensitivity_multiplies_difficulty(profile):
    weight = [4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    plain, weighted = allocate(work=profile), allocate(work=profile, sensitivity=weight)
    assert weighted.widths[0] > plain.widths[0]
    assert allocate(work=profile, sensitivity=[2.0] * 8).widths == plain.widths


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_work_changes_no_width(scale, seed):
    profile = make_profile(seed=seed)
    scaled = {g: {s: [scale * v for v in row] for s, row in t.items()} for g, t in profile.work.items()}
    assert (
        allocate(work=make_profile(seed=seed, work=scaled), quantum=4).widths
        == allocate(work=profile, quantum=4).widths
    )


@given(seed=st.integers(0, 1000), factor=st.sampled_from([2, 8, 64]))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_width_changes_no_width(seed, factor):
    """A model counted in blocks of `factor` hidden units, at its own quantum, gets the same widths."""
    fine = allocate(work=make_profile(seed=seed, width=512), quantum=factor)
    coarse = allocate(work=make_profile(seed=seed, width=512 // factor, model_dimension=128 * factor), quantum=1)
    assert [w * factor for w in coarse.widths] == list(fine.widths)


def test_work_measured_at_other_widths_is_calibrated(rng):
    """The optimum of an already optimal profile is itself: e_l at w_l with equal marginal value everywhere."""
    widths, rate = np.array([200, 300, 400, 500]), 0.5
    work = {"hyperbolic": {"topology": (widths * 3.0).tolist()}}
    profile = make_profile(4, widths=tuple(widths.tolist()), work=work)
    found = allocate(work=profile, exponent=rate, smoothing=False)
    assert found.widths == tuple(widths) and found.base_width is None


def test_no_work_is_uniform_and_says_so():
    profile = make_profile(4, work={"hyperbolic": {"topology": [0.0] * 4}})
    found = allocate(work=profile, quantum=8)
    assert set(found.widths) == {344} and "no layer does any work" in found.details["notes"][0]


def test_idle_layers_get_the_floor_of_a_quarter():
    work = {"hyperbolic": {"topology": [0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 1.0]}}
    found = allocate(work=make_profile(work=work), quantum=8, smoothing=False)
    assert [found.widths[i] for i in (0, 1, 2, 4, 5, 6)] == [88] * 6
    assert found.details["at_floor"] == [0, 1, 2, 4, 5, 6]
    assert sum(found.widths) == 8 * 344


def test_budgets_in_flops_and_parameters_agree_without_biases(profile):
    by_parameters = allocate(work=profile, budget=3 * 128 * 2000, quantum=4)
    by_flops = allocate(work=profile, budget=2 * 3 * 128 * 2000, unit="flops", quantum=4)
    assert by_parameters.widths == by_flops.widths and sum(by_flops.widths) == 2000
    assert by_flops.details["ffn_parameters"] == by_parameters.budget["spent"]


@pytest.mark.parametrize(("projections", "per_width", "fixed"), [(3, 3 * 64 + 2, 64), (2, 2 * 64 + 1, 64)])
def test_parameters_with_biases_are_those_of_the_layers(projections, per_width, fixed):
    found = allocate("linear", layers=4, base_width=100, model_dimension=64, projections=projections, biases=True)
    assert found.budget["spent"] == sum(per_width * w + fixed for w in found.widths)
    assert 0 <= found.budget["value"] - found.budget["spent"] < per_width


def test_the_total_is_that_of_the_built_model():
    import torch

    from geowidth.models.config import ModelConfig
    from geowidth.models.transformer import TaperedTransformer

    found = allocate("cosine", layers=4, base_width=100, model_dimension=32, quantum=4)
    model = TaperedTransformer(ModelConfig(64, 4, 32, 2, found.widths, 16))
    weights = [p for block in model.blocks for p in block.ffn.parameters()]
    assert len({p.data_ptr() for p in weights}) == len(weights)
    assert sum(torch.numel(p) for p in weights) == found.budget["spent"] == found.details["ffn_parameters"]


def test_tensor_parallel_and_few_widths(profile):
    found = allocate(work=profile, quantum=4, tensor_parallel=2, max_distinct_widths=3)
    assert all(w % 8 == 0 for w in found.widths) and len(set(found.widths)) <= 3 and found.quantum == 8
    assert found.budget["spent"] <= found.budget["value"]
    assert 0 <= found.details["rounding"]["gap"] < 0.02 and not found.details["rounding"]["exact"]


def test_floors_and_caps_as_widths_lists_and_multiples(profile):
    assert min(allocate(work=profile, floor=200).widths) >= 200
    assert max(allocate(work=profile, cap="1.25x").widths) <= 430
    floor = [300, 1, 1, 1, 1, 1, 1, 400]
    found = allocate("linear", layers=8, base_width=344, floor=floor).widths
    assert all(w >= f for w, f in zip(found, floor, strict=True)) and sum(found) == 8 * 344


def table():
    """0.1 ms up to width 100, then 0.1 ms more every 100."""
    widths = np.arange(10, 1001, 10)
    return TableCost(widths, np.ceil(widths / 100) * 0.1, {"model_dimension": 128})


@pytest.mark.parametrize("schedule", ["cosine", "uniform", "groups", "geometry"])
@pytest.mark.parametrize("limit", [None, 3])
def test_budgets_in_milliseconds(profile, schedule, limit):
    options = {"work": profile} if schedule == "geometry" else {"layers": 8}
    found = allocate(schedule, base_width=340, cost_table=table(), quantum=10, max_distinct_widths=limit, **options)
    assert found.budget["unit"] == "milliseconds" and found.budget["value"] == pytest.approx(8 * 0.4)
    assert found.budget["spent"] <= found.budget["value"] * (1 + 1e-8)
    assert found.budget["spent"] == pytest.approx(table().total(np.array(found.widths)))
    assert all(w % 10 == 0 for w in found.widths) and len(set(found.widths)) <= (limit or 8)
    if schedule == "uniform":
        assert found.widths == (400,) * 8  # the last 60 units of every layer cost no time


def test_milliseconds_are_spent_best(profile):
    import itertools

    from geowidth.allocate.problem import Problem
    from geowidth.allocate.schedules import find_rule

    profile = make_profile(4)
    found = allocate(work=profile, budget=1.4, cost_table=table(), quantum=100, smoothing=False)
    surrogate = find_rule("geometry").function(Problem(4, None, profile), smoothing=False).surrogate
    choices = [
        w for w in itertools.product(range(100, 1001, 100), repeat=4) if table().total(np.array(w)) <= 1.4 + 1e-9
    ]
    best = min(choices, key=lambda w: surrogate.value(np.array(w, dtype=float)).sum())
    assert surrogate.value(np.array(found.widths, float)).sum() == pytest.approx(
        surrogate.value(np.array(best, float)).sum()
    )


def test_records_read_back(tmp_path, profile):
    found = allocate(work=profile, quantum=8)
    path = tmp_path / "ein Ordner" / "plan ü.json"
    found.write(path)
    again = Schedule.read(path)
    assert again == found and again.layers == 8
    value = records.read_json(path, "geowidth.schedule", 1)
    assert value["layers"] == 8 and value["environment"]["geowidth"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": []}, "whole numbers above 0"),
        ({"widths": [1.5]}, "whole numbers above 0"),
        ({"widths": [True]}, "whole numbers above 0"),
        ({"widths": [0]}, "whole numbers above 0"),
        ({"widths": 3}, "widths is 3; needed: a list"),
        ({"layers": 5}, "says 5 layers but holds 2"),
        ({"budget": None}, "budget is None; needed: an object"),
        ({"kind": "geowidth.work"}, "'geowidth.schedule' is needed"),
        ({"schema": 9}, "schema 9"),
    ],
)
def test_damaged_schedules_are_refused(tmp_path, change, words):
    path = tmp_path / "schedule.json"
    value = allocate("uniform", layers=2, base_width=8).to_json()
    records.write_json(path, {**value, **change})
    with pytest.raises(UserError, match=words):
        Schedule.read(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "number of layers is missing"),
        ({"layers": 3}, "budget is missing"),
        ({"layers": 0, "base_width": 8}, "layers is 0"),
        ({"layers": 2.5, "base_width": 8}, "layers is 2.5"),
        ({"layers": 3, "base_width": 8, "budget": 24}, "give one of them"),
        ({"layers": 3, "base_width": -8}, "base width is -8"),
        ({"layers": 3, "base_width": True}, "base width is True"),
        ({"layers": 3, "base_width": 8, "quantum": 0}, "quantum is 0"),
        ({"layers": 3, "base_width": 8, "quantum": 16}, "below 48, what width 16 in every layer takes; feasible: 48"),
        ({"layers": 3, "base_width": 8, "tensor_parallel": 0}, "tensor parallel degree is 0"),
        ({"layers": 3, "base_width": 8, "max_distinct_widths": 0}, "different widths is 0"),
        ({"layers": 3, "base_width": 8, "seed": -1}, "seed is -1"),
        ({"layers": 3, "base_width": 8, "unit": "parameters"}, "needs the model dimension"),
        ({"layers": 3, "base_width": 8, "unit": "bytes"}, "budget unit is 'bytes'"),
        ({"layers": 3, "base_width": 8, "unit": "milliseconds"}, "needs a cost table"),
        ({"layers": 3, "base_width": 8, "unit": "width", "cost_table": table()}, "only milliseconds use it"),
        (
            {"layers": 3, "base_width": 8, "model_dimension": 64, "cost_table": table()},
            "at model dimension 128, not 64",
        ),
        ({"layers": 3, "base_width": 2000, "cost_table": table()}, "beyond the cost table, which ends at 1000"),
        ({"layers": 3, "budget": 0.1, "cost_table": table()}, "below 0.3, what the narrowest measured width takes"),
        ({"layers": 3, "budget": 0.4, "cost_table": table(), "floor": 500}, "below the floors; feasible: 1.5 to 3"),
        ({"layers": 3, "budget": 3.1, "cost_table": table()}, "above the caps or the widest measured width"),
        ({"layers": 3, "budget": float("nan"), "cost_table": table()}, "budget in milliseconds is nan"),
        ({"layers": 3, "budget": 10.5}, "budget is 10.5; allowed: whole numbers"),
        ({"layers": 3, "base_width": 8, "model_dimension": 64, "projections": 4}, "projections is 4"),
        ({"layers": 3, "base_width": 8, "model_dimension": [64, 64]}, "2 numbers for 3 layers"),
        ({"layers": 3, "base_width": 8, "floor": 20}, "below the floors"),
        ({"layers": 3, "base_width": 8, "cap": 7}, "above the caps; feasible: 3 to 21"),
        ({"layers": 3, "base_width": 8, "floor": "wide"}, "floor is 'wide'"),
        ({"layers": 3, "base_width": 8, "floor": [1, 2]}, "2 numbers for 3 layers"),
        (
            {"layers": 3, "base_width": 64, "floor": 20, "cap": 24, "quantum": 16},
            "no multiple between the floor 20 and the",
        ),
    ],
)
def test_bad_requests_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        allocate("linear", **arguments)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ([1.0, -2.0, 1.0, 1.0], "work topology/hyperbolic of layer 1 is -2.0"),
        ([1.0, 1.0, float("nan"), 1.0], "of layer 2 is nan"),
        ([1.0, 1.0, 1.0, float("inf")], "of layer 3 is inf"),
        ([1.0, 1.0, 1.0], "3 numbers for 4 layers"),
    ],
)
def test_bad_work_is_refused(work, words):
    with pytest.raises(UserError, match=words):
        allocate(work=make_profile(4, work={"hyperbolic": {"topology": work}}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"geometry": "flat"}, "geometry is 'flat'"),
        ({"statistic": "shove"}, "'shove'; allowed: shift, gw, topology"),
        ({"layers": 7}, "layers is 7 but the work profile has 8"),
        ({"mixture": {"raw/shift": -1}}, "weight of raw/shift"),
        ({"mixture": {"raw/shift": 0}}, "all 0"),
        ({"mixture": {}}, "mixture is {}"),
        ({"mixture": "raw/shift"}, "mixture is 'raw/shift'"),
        ({"sensitivity": [1, 2]}, "2 numbers for 8 layers"),
        ({"dimension": "pca"}, "dimension is 'pca'; the work profile has: twonn_mle, mle"),
        ({"exponent": -1}, "exponent of layer 0 is -1"),
        ({"smoothness": 0}, "smoothness of layer 0 is 0"),
        ({"smoothness": 2.0, "exponent": 0.5}, "for exponent 'dimension'"),
        ({"dimension": "mle", "exponent": 0.5}, "for exponent 'dimension'"),
        ({"smoothing": 1}, "smoothing is 1"),
    ],
)
def test_bad_geometry_options_are_refused(profile, options, words):
    with pytest.raises(UserError, match=words):
        allocate(work=profile, **options)


def test_exponents_may_be_an_array(profile):
    rates = np.linspace(0.2, 0.9, 8)
    assert allocate(work=profile, exponent=rates).widths == allocate(work=profile, exponent=rates.tolist()).widths
