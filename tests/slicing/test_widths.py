"""Widths by name: budgets, caps, multiples, floors; uniform and the schedules of geowidth.allocate."""

import itertools

import numpy as np
import pytest

from geowidth.artifacts.cost import TableCost
from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.targets import Keep, Latency, Parameters, Sizes
from geowidth.slicing.widths import WIDTH_RULES, Asked, fixed_widths, slice_widths, width_rule_names

SIZES = Sizes((24, 24, 12), 16, 3, False, 10_000)
FLAT = Sizes((64,) * 6, 16, 3, False, 100_000)
SCHEDULES = ("uniform", "cosine", "linear", "sigmoid", "cascade", "fan_in", "openelm", "crown", "framed", "bow_tie")
CONTROLLED = ("reversed-cosine", "permuted-linear", "sorted-crown", "inverse-openelm")


@pytest.mark.parametrize("rule", [*SCHEDULES, *CONTROLLED])
@pytest.mark.parametrize("sizes", [SIZES, FLAT])
def test_the_whole_model_stays_as_it_is(rule, sizes):
    for target in (Keep(1), Parameters(sizes.parameters)):
        assert slice_widths(rule, Evidence(sizes), target).widths == sizes.widths


@pytest.mark.parametrize("rule", [*SCHEDULES, *CONTROLLED])
@pytest.mark.parametrize("keep", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("multiple", [1, 4])
def test_budget_caps_and_multiples(rule, keep, multiple):
    found = slice_widths(rule, Evidence(FLAT), Keep(keep), multiple=multiple)
    widths = np.array(found.widths)
    assert (widths >= 1).all() and (widths <= 64).all() and (widths % multiple == 0).all()
    left = found.budget["value"] - widths.sum()
    assert found.budget["value"] == int(keep * 384) and left >= 0
    assert left < (6 * multiple if rule == "uniform" else multiple), "a step more would still fit"


def test_uniform_keeps_the_same_share():
    assert slice_widths("uniform", Evidence(FLAT), Keep(0.5)).widths == (32,) * 6
    assert slice_widths("uniform", Evidence(SIZES), Keep(0.5)).widths == (12, 12, 6)


def test_a_taper_begins_at_the_whole_width_without_a_cap_in_its_way():
    widths = np.array(slice_widths("linear", Evidence(FLAT), Keep(0.8)).widths)
    assert widths[0] == 64 and (np.diff(widths) < 0).all()
    assert np.abs(np.diff(widths, 2)).max() <= 2, "no kink: a line but for rounding"
    own = slice_widths("linear:start=1.1,end=0.9", Evidence(FLAT), Keep(0.5)).widths
    assert own[0] == pytest.approx(35, abs=1) and own[-1] == pytest.approx(29, abs=1)


def test_reversed_widths_are_the_same_widths():
    forth, back = (slice_widths(r, Evidence(FLAT), Keep(0.7)).widths for r in ("cosine", "reversed-cosine"))
    assert back == forth[::-1]


def test_distinct_widths_and_tensor_parallel():
    found = slice_widths("cosine", Evidence(FLAT), Keep(0.7), multiple=2, tensor_parallel=2, max_distinct_widths=2)
    assert len(set(found.widths)) <= 2 and all(width % 4 == 0 for width in found.widths)


def test_a_multiple_that_does_not_divide_the_model_takes_the_multiples_below():
    assert slice_widths("uniform", Evidence(Sizes((10, 10), 8)), Keep(1), multiple=4).widths == (8, 8)


def test_floors():
    found = slice_widths("linear:start=1.9,end=0.1", Evidence(FLAT), Keep(0.5), floor="0.5x")
    assert min(found.widths) == 16
    assert min(slice_widths("linear:start=1.9,end=0.1", Evidence(FLAT), Keep(0.5), floor=20).widths) == 20


def test_latency_is_kept_and_used_up():
    table = TableCost([16, 32, 48, 64], [1.0, 2.0, 3.0, 4.0])
    found = slice_widths("linear", Evidence(FLAT), Latency(18.0, table))
    assert table.total(found.widths) <= 18.0
    assert all(
        table.total(np.minimum(np.array(found.widths) + step * 16, 64)) > 18.0 or found.widths[layer] == 64
        for layer, step in enumerate(np.eye(6, dtype=int))
    )


def test_parameters_are_met_to_the_last_affordable_neuron():
    for total in (99_000, 95_123, 90_007):
        found = slice_widths("cosine", Evidence(FLAT), Parameters(total))
        assert total - 48 < FLAT.total(found.widths) <= total


def test_rules_are_read_as_arms_are():
    asked = Asked.parse("reversed-cosine:start=1.2,end=0.8")
    assert (asked.rule.name, asked.control, asked.options) == ("cosine", "reversed", {"start": 1.2, "end": 0.8})
    assert {"uniform", "cosine"} <= set(width_rule_names()) and "reversed" not in width_rule_names()
    assert set(WIDTH_RULES) <= set(width_rule_names())


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("nosuch", "allowed: uniform"),
        ("reversed", "allowed: uniform"),
        ("reversed-reversed-cosine", "allowed: uniform"),
        ("cosine:begin=2", "no option 'begin'"),
        ("uniform:start=2", "no option 'start'"),
        (None, "rule for widths is None"),
        ("cascade:taper=both,heads=4", "leaves attention alone"),
    ],
)
def test_wrong_rules_are_one_line(rule, words):
    with pytest.raises(UserError, match=words) as caught:
        slice_widths(rule, Evidence(FLAT), Keep(0.5))
    assert "\n" not in str(caught.value)


def test_a_multiple_wider_than_a_layer_is_refused():
    with pytest.raises(UserError, match="layer 2 has 12 neurons, no multiple of 16"):
        slice_widths("uniform", Evidence(SIZES), Keep(0.5), multiple=16)


def test_the_widths_of_a_file():
    found = slice_widths("cosine", Evidence(FLAT), Keep(0.5))
    assert fixed_widths(Schedule.from_json(found.to_json()), FLAT) == found.widths
    with pytest.raises(UserError, match="gives layer 0 .* neurons, the model has 12 there"):
        fixed_widths(found, Sizes((12,) * 6, 16))
    with pytest.raises(UserError, match="6 layers, the model 3"):
        fixed_widths(found, SIZES)
    with pytest.raises(UserError, match="model dimension 16"):
        fixed_widths(slice_widths("cosine", Evidence(FLAT), Parameters(90_000)), Sizes((64,) * 6, 32))


def test_uniform_widths_are_the_widest_that_fit():
    """Against every pair of widths there is: one common width, or for two kinds of layers the closest to one share."""
    sizes = Sizes((12, 12, 12), 8)
    for keep in np.linspace(0.1, 1, 19):
        amount = Keep(float(keep)).budget(sizes).amount
        best = max(w for w in range(1, 13) if 3 * w <= amount)
        assert slice_widths("uniform", Evidence(sizes), Keep(float(keep))).widths == (best,) * 3
    pairs = Sizes((12, 6), 8)
    for amount in range(2, 18):
        share = Keep((amount + 0.5) / 18)
        widths = slice_widths("uniform", Evidence(pairs), share).widths
        room = share.budget(pairs).amount
        every = [(a, b) for a, b in itertools.product(range(1, 13), range(1, 7)) if a + b == room]
        target = np.array([12, 6]) * room / 18
        assert min(np.square(np.array(p) - target).sum() for p in every) == pytest.approx(
            np.square(np.array(widths) - target).sum()
        )
