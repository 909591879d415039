"""Every schedule: its formula, its budget, its options; controls; plug-ins."""

import numpy as np
import pytest

from geowidth.allocate import allocate, schedule_names
from geowidth.allocate.problem import Problem
from geowidth.allocate.schedules import BUILT_IN, CONTROLS, Optimum, Rule, Shape, _plug_ins, find_rule
from geowidth.allocate.schedules.cascade import stepped_heads
from geowidth.errors import UserError

COSINE_24 = (
    "6144 6128 6064 5968 5840 5680 5488 5280 5040 4784 4512 4240 "
    "3952 3680 3408 3152 2912 2704 2512 2352 2224 2128 2064 2048"
)
COSINE_12 = "4608 4544 4368 4080 3712 3296 2848 2432 2064 1776 1600 1536"
SHAPES = [name for name in BUILT_IN if name not in (*CONTROLS, "geometry", "calibrated")]


def shape(name, layers=8, **options):
    """The real shape of a rule."""
    return find_rule(name).function(Problem(layers), **options).widths


@pytest.mark.parametrize(("layers", "base", "row"), [(24, 4096, COSINE_24), (12, 3072, COSINE_12)])
def test_published_cosine_rows(layers, base, row):
    """Tapered Language Models: nearest multiples of 16, which for this symmetric taper spend exactly the budget."""
    found = allocate("cosine", layers=layers, base_width=base, quantum=16)
    assert list(found.widths) == [int(word) for word in row.split()]
    assert found.budget == {"unit": "width", "value": layers * base, "spent": layers * base}
    assert found.details["rounding"] == {"gap": 0.0, "exact": True, "left": 0}


def test_closed_forms():
    depth = np.arange(8) / 7
    assert shape("cosine") == pytest.approx(0.5 + 0.5 * (1 + np.cos(np.pi * depth)))
    assert shape("linear", start=2.0, end=1.0) == pytest.approx(2.0 - depth)
    assert shape("fan_in") == pytest.approx(np.arange(8, 0, -1))
    assert shape("fan_in", supervised=True) == pytest.approx([k * (k + 1) / 2 for k in range(8, 0, -1)])
    weights = [0.5, 0.0, 2.0, 1.0]
    expected = [sum(weights[k] * (k - block + 1) for k in range(block, 4)) for block in range(4)]
    assert shape("fan_in", 4, head_weights=weights) == pytest.approx(expected)
    assert shape("openelm") == pytest.approx(0.5 + 3.5 * depth)
    assert shape("reverse") == pytest.approx(shape("openelm")[::-1])
    assert shape("framed", 5) == pytest.approx([1.5, 0.5, 1.0, 1.5, 1.5])
    assert shape("framed", 6, frame=2, low=1, high=2) == pytest.approx([2, 2, 1, 2, 2, 2])
    assert shape("crown", 5) == pytest.approx([0.5, 1.0, 1.5, 1.0, 0.5])
    assert shape("bow_tie", 5) == pytest.approx([1.5, 1.0, 0.5, 1.0, 1.5])
    assert shape("bow_tie", 5, waist=0.75) == pytest.approx([1.5, 1.5 - 1 / 3, 1.5 - 2 / 3, 0.5, 1.5])
    assert shape("groups") == pytest.approx([1.5] * 3 + [1.0] * 2 + [0.5] * 3)
    assert shape("cascade") == pytest.approx(1.5 - depth)


def test_sigmoid_hits_its_ends_and_is_a_line_when_blunt():
    steep = shape("sigmoid", sharpness=25.0)
    assert steep[0] == pytest.approx(1.5) and steep[-1] == pytest.approx(0.5)
    assert (np.diff(steep) < 0).all() and steep[2] > 1.45 and steep[5] < 0.55
    assert shape("sigmoid", sharpness=1e-5) == pytest.approx(shape("linear"), abs=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 3, 7])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_spends_the_budget(name, layers):
    found = allocate(name, layers=layers, base_width=512, model_dimension=64, quantum=8)
    assert found.layers == layers and found.name == name
    assert found.budget["spent"] == sum(3 * 64 * w for w in found.widths) == found.details["ffn_parameters"]
    assert 0 <= found.budget["value"] - found.budget["spent"] < 3 * 64 * 8 * (layers if name in ("groups",) else 1)
    assert all(width % 8 == 0 for width in found.widths)


def test_uniform_keeps_one_width_even_off_the_quantum():
    found = allocate("uniform", layers=6, base_width=100, quantum=16)
    assert found.widths == (96,) * 6 and found.details["rounding"]["left"] == 24


def test_controls_rearrange_the_very_same_widths(profile):
    straight = allocate("geometry", work=profile, quantum=8)
    turned = allocate("geometry", work=profile, quantum=8, control="reversed")
    assert turned.widths == straight.widths[::-1] and turned.budget == straight.budget
    assert turned.name == "reversed" and turned.settings["of"] == "geometry"
    mixed = allocate("geometry", work=profile, quantum=8, control="permuted", seed=3)
    assert sorted(mixed.widths) == sorted(straight.widths) and mixed.widths != straight.widths
    assert allocate("geometry", work=profile, quantum=8, control="permuted", seed=3).widths == mixed.widths
    assert allocate("geometry", work=profile, quantum=8, control="permuted", seed=4).widths != mixed.widths
    falling = allocate("geometry", work=profile, quantum=8, control="sorted")
    assert list(falling.widths) == sorted(straight.widths, reverse=True)
    rising = allocate("geometry", work=profile, quantum=8, control="sorted", rising=True)
    assert rising.widths == falling.widths[::-1]
    anti = allocate("geometry", work=profile, quantum=8, control="inverse")
    assert np.corrcoef(anti.widths, straight.widths)[0, 1] < 0
    assert anti.budget["spent"] == straight.budget["spent"]
    assert allocate("reversed", of="geometry", work=profile, quantum=8).widths == turned.widths


def test_controls_under_unequal_prices_keep_the_budget():
    found = allocate("cosine", layers=6, base_width=512, model_dimension=[64, 96] * 3, quantum=8, control="reversed")
    assert 0 <= found.budget["value"] - found.budget["spent"] < 3 * 64 * 8
    assert found.widths[0] < found.widths[-1]


def test_cascade_heads_fall_in_steps_within_their_total():
    heads = stepped_heads(12, 8, 1.5, 0.5, 4, 1)
    assert heads.sum() <= 96 and len(set(heads)) == 4 and (np.diff(heads) <= 0).all()
    assert all(len(set(heads[i : i + 3])) == 1 for i in range(0, 12, 3))
    assert (stepped_heads(12, 8, 1.5, 0.5, 4, 2) % 2 == 0).all()
    assert stepped_heads(3, 4, 1.5, 0.5, 1, 1).tolist() == [4, 4, 4]
    both = allocate("cascade", layers=12, base_width=512, taper="both", heads=8)
    assert both.heads == heads.tolist() and both.widths[0] > both.widths[-1]
    only = allocate("cascade", layers=12, base_width=512, taper="heads", heads=8)
    assert only.heads == heads.tolist() and set(only.widths) == {512}
    turned = allocate("cascade", layers=12, base_width=512, taper="both", heads=8, control="reversed")
    assert turned.heads == heads.tolist()[::-1]
    assert allocate("cosine", layers=3, base_width=8).heads is None
    inverse = allocate("cascade", layers=12, base_width=512, taper="both", heads=8, control="inverse")
    assert inverse.heads is None and "rearranges no heads" in inverse.details["notes"][0]


@pytest.mark.parametrize("scale", [1e307, 1e-307])
def test_only_the_ratios_of_a_shape_count(scale):
    for options in ({}, {"max_distinct_widths": 3}, {"floor": 9, "cap": 90}):
        plain = allocate("cosine", layers=5, base_width=64, start=1.5, end=0.5, **options)
        scaled = allocate("cosine", layers=5, base_width=64, start=1.5 * scale, end=0.5 * scale, **options)
        assert scaled.widths == plain.widths


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cosin", {}, "schedule is 'cosin'; allowed: uniform, cosine"),
        ("cosine", {"start": 0.0}, "start is 0.0"),
        ("cosine", {"end": float("nan")}, "end is nan"),
        ("cosine", {"start": True}, "start is True"),
        ("cosine", {"sharpness": 2}, "no option 'sharpness'; allowed: start, end"),
        ("uniform", {"start": 2}, "no option 'start'; allowed: none"),
        ("sigmoid", {"sharpness": -1}, "sharpness is -1"),
        ("bow_tie", {"waist": 1.0}, "waist is 1"),
        ("fan_in", {"supervised": "yes"}, "supervised is 'yes'"),
        ("fan_in", {"head_weights": [1, 1, 1, 0]}, "last head weight"),
        ("fan_in", {"head_weights": [1, 1]}, "2 numbers for 4 layers"),
        ("cascade", {"taper": "all"}, "taper is 'all'"),
        ("cascade", {"taper": "heads"}, "give heads=N"),
        ("cascade", {"heads": 4}, "leaves attention alone"),
        ("cascade", {"taper": "both", "heads": 5, "head_multiple": 2}, "multiples of head_multiple 2"),
        ("geometry", {}, "needs a work profile"),
        ("framed", {"frame": 0.5}, "frame is 0.5; allowed: whole numbers"),
        ("linear", {"control": "reversed", "of": "cosine"}, "give one of them"),
        ("reversed", {"of": "sorted"}, "not from the control 'sorted'"),
        ("reversed", {"of": "linear", "sharpness": 1}, "no option 'sharpness'"),
        ("cosine", {"control": "linear"}, "control is 'linear'"),
        ("sorted", {"of": "linear", "rising": 1}, "rising is 1"),
    ],
)
def test_bad_names_and_options_are_refused(name, options, words):
    with pytest.raises(UserError, match=words):
        allocate(name, layers=4, base_width=64, **options)


def test_every_schedule_is_listed_with_one_line():
    assert list(BUILT_IN) == schedule_names()[: len(BUILT_IN)]
    for name in BUILT_IN:
        rule = find_rule(name)
        assert rule.name == name and rule.summary and rule.function.__doc__
        assert rule.control == (name in CONTROLS)


def test_plug_ins_by_entry_point(monkeypatch):
    def spike(problem, *, height=3.0):
        """One wide layer in the middle."""
        widths = np.ones(problem.layers)
        widths[problem.layers // 2] = height
        return Shape(widths)

    class Point:
        value = "somewhere:spike"

        def __init__(self, found):
            self.found = found

        def load(self):
            if isinstance(self.found, Exception):
                raise self.found
            return self.found

    points = {
        "spike": Point(spike),
        "ruled": Point(Rule("ruled", "x", spike)),
        "broken": Point(ImportError("no such module")),
        "number": Point(7),
        "cosine": Point(spike),
        "wrong": Point(lambda problem: "wide"),
        "short": Point(lambda problem: Shape(np.ones(2))),
    }
    monkeypatch.setattr("geowidth.allocate.schedules._plug_ins", lambda: points)
    assert schedule_names()[-6:] == ["spike", "ruled", "broken", "number", "wrong", "short"]
    assert find_rule("spike").summary == "One wide layer in the middle."
    assert allocate("spike", layers=5, base_width=70, height=3).widths == (50, 50, 150, 50, 50)
    assert allocate("ruled", layers=5, base_width=70).widths == (50, 50, 150, 50, 50)
    assert allocate("cosine", layers=3, base_width=100).widths == (150, 100, 50)  # built-in names cannot be taken over
    for name, words in [
        ("broken", "cannot be loaded: no such module"),
        ("number", "neither a function nor a Rule"),
        ("wrong", "returned str"),
        ("short", "5 finite numbers above 0 are needed"),
    ]:
        with pytest.raises(UserError, match=words):
            allocate(name, layers=5, base_width=70)


def test_entry_points_are_looked_up_in_the_group():
    assert isinstance(_plug_ins(), dict)


def test_a_rule_of_ones_own_is_taken_as_it_is(profile):
    rule = Rule("mine", "own", lambda problem: Optimum(find_rule("geometry").function(problem).surrogate))
    assert allocate(rule, work=profile).widths == allocate("geometry", work=profile).widths
    assert allocate(rule, work=profile, control="reversed").widths == allocate("geometry", work=profile).widths[::-1]
