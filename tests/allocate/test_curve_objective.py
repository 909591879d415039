"""Curves, values known neuron by neuron: as an objective, and as the answer of a schedule, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geowidth.allocate import allocate
from geowidth.allocate.curves import Curves
from geowidth.allocate.rounding import round_widths
from geowidth.allocate.schedules import Optimum, Rule
from geowidth.artifacts.cost import LinearCost, TableCost
from geowidth.errors import UserError

GAINS = st.lists(st.floats(0, 10).map(lambda v: round(v, 3)), min_size=1, max_size=7).map(
    lambda values: np.sort(values)[::-1]
)


def along(curves):
    return Rule("along", "", lambda problem: Optimum(curves))


def least(curves, costs, budget, widths):
    """The least summed value of all widths within the budget."""
    totals = [
        sum(float(gains[w:].sum()) for gains, w in zip(curves.gains, pick, strict=True))
        for pick in itertools.product(*widths)
        if sum(cost[w] for cost, w in zip(costs, pick, strict=True)) <= budget
    ]
    return min(totals)


def test_values_and_gains_are_those_of_the_neurons():
    curves = Curves([[4.0, 2.0, 1.0], [3.0]])
    assert curves.value(np.array([0, 0])).tolist() == [7.0, 3.0]
    assert curves.value(np.array([2.5, 9.0])).tolist() == [0.5, 0.0]
    assert curves.gain(np.array([1.0, 1.0]), 1).tolist() == [2.0, 0.0]
    assert curves.gain(np.array([0.0, 0.0]), 2).tolist() == [6.0, 3.0]
    assert curves.gain(np.array([2.0, 4.0]), 2).tolist() == [1.0, 0.0]


@given(st.lists(GAINS, min_size=1, max_size=3), st.data())
@settings(deadline=None, max_examples=60)
def test_the_best_widths_at_any_prices(gains, data):
    curves = Curves(gains)
    prices = data.draw(st.lists(st.integers(1, 5), min_size=len(gains), max_size=len(gains)))
    step = data.draw(st.integers(1, 2)) if min(map(len, gains)) > 1 else 1
    cost = LinearCost("parameters", np.array(prices), np.zeros(len(gains), int))
    most = [len(layer) // step * step for layer in gains]
    low, high = cost.total(1, step), cost.total(most)
    budget = data.draw(st.integers(low, high))
    found = round_widths(curves, cost, budget, 1, np.array(most), step)
    assert cost.total(found.widths) <= budget and (found.widths % step == 0).all()
    ranges = [range(step, m + 1, step) for m in most]
    costs = [np.arange(m + 1) * p for m, p in zip(most, prices, strict=True)]
    assert found.exact and found.objective == pytest.approx(least(curves, costs, budget, ranges), abs=1e-9)


def test_a_schedule_may_answer_with_curves():
    curves = Curves([[5.0, 4.0, 3.0, 0.0], [2.0, 1.0, 1.0, 0.5], [0.0] * 4])
    found = allocate(along(curves), layers=3, budget=6, unit="width", cap=4, floor=1)
    assert found.widths == (3, 2, 1) and found.details["predicted"] == 1.5
    assert found.details["predicted_uniform"] == 3.0 + 1.5
    assert allocate(along(curves), control="reversed", layers=3, budget=6, unit="width", cap=4, floor=1).widths == (
        1,
        2,
        3,
    )
    two = allocate(along(curves), layers=3, budget=8, unit="width", cap=4, floor=1, max_distinct_widths=2).widths
    assert len(set(two)) == 2 and sum(two) <= 8


def test_curves_under_a_budget_of_time():
    curves = Curves([[5.0, 4.0, 3.0, 2.0], [2.0, 1.0, 1.0, 0.5]])
    table = TableCost([1, 2, 3, 4], [1.0, 1.0, 3.0, 3.5])
    costs = [np.concatenate([[np.inf], table.milliseconds])] * 2
    for budget in (2.0, 4.0, 4.5, 6.6):
        found = allocate(along(curves), layers=2, budget=budget, cost_table=table, cap=4, floor=1)
        assert table.total(found.widths) <= budget
        assert found.details["predicted"] == pytest.approx(least(curves, costs, budget, [range(1, 5)] * 2))


@pytest.mark.parametrize("gains", [[[1.0, 2.0]], [[1.0, -1.0]], [[np.nan]], [[[1.0]]]])
def test_what_is_not_convex_is_refused(gains):
    with pytest.raises(UserError, match="the curve of layer 0 is not convex"):
        Curves(gains)


def test_one_curve_a_layer():
    with pytest.raises(UserError, match="has 1 curves for 2 layers"):
        allocate(along(Curves([[1.0]])), layers=2, budget=2, unit="width", cap=1)
