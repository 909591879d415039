"""Costs: linear ones, measured staircases, and the timing that makes them."""

import numpy as np
import pytest

from geowidth import records
from geowidth.allocate.timed import uniform_time_width
from geowidth.allocate.timing import measure_cost, never_falling
from geowidth.artifacts.cost import TableCost, linear_cost
from geowidth.errors import UserError


def test_linear_costs_by_hand():
    widths = np.array([10, 20])
    gated = linear_cost("parameters", 2, 8, 3, True)
    assert gated.of(widths).tolist() == [3 * 8 * 10 + 2 * 10 + 8, 3 * 8 * 20 + 2 * 20 + 8]
    plain = linear_cost("flops", 2, 8, 2, [0, 1])
    assert plain.of(widths).tolist() == [2 * 2 * 8 * 10, 2 * 2 * 8 * 20 + 20 + 8]
    assert gated.equal and not plain.equal and linear_cost("width", 2).total(widths) == 30
    assert gated.total(10) == 2 * (3 * 8 * 10 + 2 * 10 + 8)


def test_never_falling_is_the_closest_curve(rng):
    assert never_falling([1.0, 3.0, 2.0, 4.0]).tolist() == [1.0, 2.5, 2.5, 4.0]
    assert never_falling([3.0, 2.0, 1.0]).tolist() == [2.0] * 3
    values = rng.normal(size=12) + np.arange(12) * 0.3
    fit = never_falling(values)
    assert (np.diff(fit) >= 0).all()
    for _ in range(200):  # no other rising curve is closer
        other = np.sort(fit + 0.1 * rng.normal(size=12))
        assert np.square(other - values).sum() >= np.square(fit - values).sum() - 1e-12


def test_a_staircase_charges_the_next_measured_width():
    table = TableCost(np.array([64, 128, 256]), np.array([1.0, 2.0, 5.0]))
    assert table.of(np.array([1, 64, 65, 128, 200, 256])).tolist() == [1.0, 1.0, 2.0, 2.0, 5.0, 5.0]
    assert uniform_time_width(table, 3, 6.0) == 128 and uniform_time_width(table, 3, 14.9) == 128
    with pytest.raises(UserError, match="beyond the cost table"):
        table.of(np.array([257]))
    with pytest.raises(UserError, match="below 3, what the narrowest"):
        uniform_time_width(table, 3, 2.9)


@pytest.mark.parametrize(("projections", "kind"), [(3, "forward"), (2, "forward"), (3, "training"), (2, "training")])
def test_measured_tables_read_back(tmp_path, projections, kind):
    table = measure_cost([4, 8, 12], 8, tokens=4, projections=projections, kind=kind, rounds=2)
    assert (table.milliseconds > 0).all() and (np.diff(table.milliseconds) >= 0).all()
    path = tmp_path / "cost.json"
    records.write_json(path, table.to_json())
    again = TableCost.read(path)
    assert again.milliseconds.tolist() == table.milliseconds.tolist() and again.widths.tolist() == [4, 8, 12]
    assert again.facts["pass"] == kind and len(again.facts["measured"]["median"]) == 3


def test_low_precision_is_timed_too():
    assert measure_cost([8], 8, tokens=4, dtype="bfloat16", rounds=1).facts["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "change",
    [
        {"widths": [8, 4]},
        {"widths": [0, 4]},
        {"milliseconds": [2.0, 1.0]},
        {"milliseconds": [1.0]},
        {"milliseconds": [0.0, 1.0]},
        {"milliseconds": [1.0, float("inf")]},
        {"widths": [], "milliseconds": []},
        {"widths": "ab"},
    ],
)
def test_damaged_tables_are_refused(tmp_path, change):
    path = tmp_path / "cost.json"
    good = TableCost(np.array([4, 8]), np.array([1.0, 2.0])).to_json()
    records.write_json(path, {**good, **change})
    with pytest.raises(UserError, match=r"cost table|never falling"):
        TableCost.read(path)
