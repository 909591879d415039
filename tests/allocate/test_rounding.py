"""Integer widths against brute force: budget, bounds, quantum, optimality or the gap that is claimed."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from geowidth.allocate.distinct import best_set, least_squares_with, round_distinct
from geowidth.allocate.knapsack import choose_within, lower_hull, relax
from geowidth.allocate.rounding import Closest, Tied, bounds_in_steps, paying, round_widths
from geowidth.allocate.solve import fit_shape, solve_surrogate
from geowidth.allocate.surrogate import Surrogate
from geowidth.artifacts.cost import linear_cost
from geowidth.errors import UserError


def random_problem(generator, equal):
    """(surrogate, cost, budget, floor, cap, quantum, all feasible widths) small enough to list."""
    layers, quantum = int(generator.integers(2, 5)), int(generator.choice([1, 3, 8]))
    surrogate = Surrogate(generator.gamma(1, 1, layers), generator.uniform(0.1, 2, layers))
    dimension = 4 if equal else generator.integers(1, 5, layers).tolist()
    biases = [True] * layers if equal else generator.integers(0, 2, layers).tolist()
    cost = linear_cost("parameters", layers, dimension, int(generator.integers(2, 4)), biases)
    low = generator.integers(1, 3, layers)
    high = low + generator.integers(1, 7, layers)
    budget = int(generator.integers(cost.total(low * quantum), cost.total(high * quantum) + 1))
    ranges = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
    listed = [np.array(c) * quantum for c in itertools.product(*ranges)]
    listed = [c for c in listed if cost.total(c) <= budget]
    return surrogate, cost, budget, low * quantum * 1.0, high * quantum * 1.0, quantum, listed


def check(found, cost, budget, floor, cap, quantum):
    """What every rounding must keep."""
    left = budget - cost.total(found.widths)
    assert left >= 0 and (found.widths % quantum == 0).all()
    assert (found.widths >= floor).all() and (found.widths <= cap).all()
    steps = cost.per_width[found.widths + quantum <= cap] * quantum
    assert not steps.size or left < steps.min()


@given(seed=st.integers(0, 10**6), equal=st.booleans())
@settings(max_examples=60, deadline=None)
def test_surrogate_rounding_is_the_best_there_is(seed, equal):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap, quantum, listed = random_problem(generator, equal)
    found = round_widths(surrogate, cost, budget, floor, cap, quantum)
    check(found, cost, budget, floor, cap, quantum)
    best = min(surrogate.value(c.astype(float)).sum() for c in listed)
    assert found.exact and found.gap == 0.0
    assert found.objective == pytest.approx(best, rel=1e-9)


@given(seed=st.integers(0, 10**6), equal=st.booleans())
@settings(max_examples=60, deadline=None)
def test_shape_rounding_is_the_closest_that_spends_the_budget(seed, equal):
    generator = np.random.default_rng(seed)
    _, cost, budget, floor, cap, quantum, listed = random_problem(generator, equal)
    target = fit_shape(generator.uniform(0.5, 2, len(floor)), cost.per_width, budget - cost.fixed.sum(), floor, cap)
    found = round_widths(Closest(target), cost, budget, floor, cap, quantum)
    check(found, cost, budget, floor, cap, quantum)
    objective = paying(Closest(target), cost, quantum)
    if equal:
        most = max(cost.total(c) for c in listed)
        best = min(Closest(target).value(c).sum() for c in listed if cost.total(c) == most)
        assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-6)
    elif found.exact:
        best = min(objective.value(c).sum() for c in listed)
        assert objective.value(found.widths).sum() == pytest.approx(best, rel=1e-9, abs=1e-6)


@given(seed=st.integers(0, 10**6), equal=st.booleans())
@settings(max_examples=40, deadline=None)
def test_tied_layers_share_a_width_and_are_rounded_best(seed, equal):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap, quantum, listed = random_problem(generator, equal)
    labels = generator.integers(0, 2, len(floor)) * 5
    same = [c for c in listed if all(len(set(c[labels == k])) <= 1 for k in (0, 5))]
    assume(same)
    found = round_widths(surrogate, cost, budget, floor, cap, quantum, labels)
    assert all(len(set(found.widths[labels == k])) <= 1 for k in (0, 5))
    assert cost.total(found.widths) <= budget
    best = min(surrogate.value(c.astype(float)).sum() for c in same)
    assert found.objective == pytest.approx(best, rel=1e-9)


@given(seed=st.integers(0, 10**6), equal=st.booleans(), limit=st.integers(1, 3), shape=st.booleans())
@settings(max_examples=60, deadline=None)
def test_few_distinct_widths_keep_the_limit_and_prove_their_gap(seed, equal, limit, shape):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap, quantum, listed = random_problem(generator, equal)
    few = [c for c in listed if len(set(c)) <= limit]
    assume(few)
    objective = Closest(generator.uniform(floor, cap)) if shape else surrogate
    found = round_distinct(objective, cost, budget, floor, cap, quantum, limit)
    free = round_widths(objective, cost, budget, floor, cap, quantum)
    assert len(set(found.widths)) <= limit and cost.total(found.widths) <= budget
    assert (found.widths >= floor).all() and (found.widths <= cap).all()
    if len(set(free.widths)) > limit:
        paid = paying(objective, cost, quantum)
        best = min(paid.value(c.astype(float)).sum() for c in few)
        slack = 1e-9 * max(1.0, abs(best))
        assert found.lower <= best + slack
        assert found.objective <= best + found.gap * abs(found.objective) + slack


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_more_budget_never_narrows_a_layer_at_equal_prices(seed):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap, quantum, _ = random_problem(generator, True)
    less = round_widths(surrogate, cost, budget, floor, cap, quantum).widths
    room = cost.total(cap.astype(np.int64)) - budget
    more = round_widths(surrogate, cost, budget + int(generator.integers(0, room + 1)), floor, cap, quantum).widths
    assert (more >= less).all()


@given(seed=st.integers(0, 10**6), quantum=st.sampled_from([1, 16, 64]))
@settings(max_examples=40, deadline=None)
def test_order_of_difficulty_is_kept_at_equal_exponents(seed, quantum):
    generator = np.random.default_rng(seed)
    coefficient = np.sort(generator.gamma(1, 1, 10))[::-1]
    surrogate = Surrogate(coefficient, np.full(10, generator.uniform(0.05, 1.5)))
    cost = linear_cost("width", 10)
    widths = round_widths(surrogate, cost, 10 * 512, np.full(10, 64.0), np.full(10, 2048.0), quantum).widths
    assert (np.diff(widths) <= 0).all()


def test_nearest_multiples_where_they_spend_the_budget():
    target = np.array([100.4, 87.6, 12.0])
    assert round_widths(
        Closest(target), linear_cost("width", 3), 200, np.ones(3), np.full(3, np.inf), 1
    ).widths.tolist() == [
        100,
        88,
        12,
    ]


def test_equal_remainders_go_to_the_earlier_layers():
    target = np.full(4, 10.5)
    found = round_widths(Closest(target), linear_cost("width", 4), 42, np.ones(4), np.full(4, np.inf), 1)
    assert found.widths.tolist() == [11, 11, 10, 10]


@pytest.mark.parametrize("quantum", [1, 16, 64, 128, 256])
def test_large_models_stay_near_the_continuous_optimum(rng, quantum):
    surrogate = Surrogate(rng.gamma(2, 1, 96), rng.uniform(0.05, 0.3, 96))
    cost = linear_cost("parameters", 96, rng.choice([4096, 5120, 6144], 96).tolist())
    floor, cap, budget = np.full(96, 2048.0), np.full(96, 65536.0), cost.total(16384)
    exact = solve_surrogate(surrogate, cost.per_width, budget, floor, cap)
    found = round_widths(surrogate, cost, budget, floor, cap, quantum)
    check(found, cost, budget, floor, cap, quantum)
    assert exact.surrogate * (1 - 1e-12) <= found.objective <= exact.surrogate * (1 + 1e-5 * quantum)
    assert found.gap < 1e-6


def test_millions_of_steps_spend_the_budget(rng):
    surrogate, cost = Surrogate(rng.gamma(2, 1, 1000), np.full(1000, 0.2)), linear_cost("width", 1000)
    found = round_widths(surrogate, cost, 16_384_123, np.full(1000, 1.0), np.full(1000, np.inf), 1)
    assert found.widths.sum() == 16_384_123


def test_eight_widths_for_many_layers(rng):
    surrogate, cost = Surrogate(rng.gamma(2, 1, 48), rng.uniform(0.1, 0.3, 48)), linear_cost("parameters", 48, 512)
    found = round_distinct(surrogate, cost, cost.total(2048), np.full(48, 512.0), np.full(48, 8192.0), 16, 8)
    assert len(set(found.widths)) <= 8 and cost.total(found.widths) <= cost.total(2048)
    assert 0.0 <= found.gap < 5e-3


def test_least_squares_with_few_values_against_all_groups(rng):
    target = rng.uniform(0, 100, 7)
    for limit in (1, 2, 3):
        cuts = itertools.combinations(range(1, 7), limit - 1)
        groups = [np.split(np.sort(target), cut) for cut in cuts]
        best = min(sum(np.square(part - part.mean()).sum() for part in parts) for parts in groups)
        assert least_squares_with(target, limit) == pytest.approx(best, rel=1e-9)
    assert least_squares_with(target, 7) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("quantum", [1, 16])
def test_a_shape_in_few_widths_is_proven_nearly_best(quantum):
    target = 4096 + 2048 * np.cos(np.pi * np.arange(24) / 23)
    cost, floor, cap = linear_cost("width", 24), np.ones(24), np.full(24, np.inf)
    found = round_distinct(Closest(target), cost, 24 * 4096, floor, cap, quantum, 8)
    assert len(set(found.widths)) == 8 and found.widths.sum() <= 24 * 4096 and found.gap < 0.02


def test_best_set_against_all_sets(rng):
    for _ in range(20):
        target, grid = rng.uniform(0, 12, 6), np.arange(12.0)
        table = (grid[None, :] - target[:, None]) ** 2 * rng.uniform(0.5, 2, 6)[:, None]
        for limit in (1, 2, 3):
            sets = itertools.combinations(range(12), limit)
            expected = min(table[:, list(chosen)].min(axis=1).sum() for chosen in sets)
            total, chosen = best_set(table, limit)
            assert total == pytest.approx(expected) and len(chosen) <= limit
            assert table[:, chosen].min(axis=1).sum() == pytest.approx(expected)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_knapsack_against_all_choices(seed):
    generator = np.random.default_rng(seed)
    layers, choices = int(generator.integers(1, 5)), int(generator.integers(1, 5))
    costs = generator.integers(0, 12, (layers, choices)).astype(float)
    values = generator.normal(size=(layers, choices))
    values[generator.random(values.shape) < 0.1] = np.inf
    budget = float(generator.integers(0, 30))
    rows = np.arange(layers)
    best = np.inf
    for picks in itertools.product(range(choices), repeat=layers):
        if costs[rows, picks].sum() <= budget:
            best = min(best, values[rows, picks].sum())
    found = choose_within(list(costs), list(values), budget)
    if not np.isfinite(best):
        assert found is None
        return
    assert found.exact and found.value == pytest.approx(best, abs=1e-9)
    assert costs[rows, found.picks].sum() <= budget
    assert relax(list(costs), list(values), budget).lower <= best + 1e-9


def test_knapsack_beyond_its_states_says_so(rng):
    costs, values = rng.uniform(1, 2, (14, 6)), -rng.uniform(1, 2, (14, 6))
    found = choose_within(list(costs), list(values), 20.0, states=3)
    full = choose_within(list(costs), list(values), 20.0)
    assert full.exact and not found.exact
    assert found.lower <= full.value <= found.value


def test_lower_hull_drops_dominated_and_concave_points():
    cost, value = np.array([0.0, 1.0, 2.0, 3.0, 3.0, 4.0]), np.array([5.0, 4.9, 1.0, 0.0, 2.0, 7.0])
    assert lower_hull(cost, value) == [0, 2, 3]


def test_no_multiple_between_the_bounds_is_refused():
    with pytest.raises(UserError, match="quantum 64 has no multiple between the floor 70 and the cap 100 of layer 1"):
        bounds_in_steps(np.array([10.0, 70.0]), np.array([100.0, 100.0]), 64)


def test_infeasible_budgets_name_the_range_in_multiples():
    cost = linear_cost("width", 2)
    with pytest.raises(UserError, match="below the floors in multiples of 16; feasible: 32 to 60"):
        round_widths(Closest(np.ones(2)), cost, 31, np.full(2, 10.0), np.full(2, 30.0), 16)
    with pytest.raises(UserError, match="above the caps; feasible: 32 to 60"):
        round_widths(Closest(np.ones(2)), cost, 61, np.full(2, 10.0), np.full(2, 30.0), 16)


def test_tied_layers_with_contradicting_bounds_are_refused():
    with pytest.raises(UserError, match="layers tied to one width"):
        round_widths(
            Closest(np.full(2, 5.0)),
            linear_cost("width", 2),
            30,
            np.array([1.0, 20.0]),
            np.array([8.0, 30.0]),
            1,
            [0, 0],
        )


def test_tied_objective_sums_over_labels():
    tied = Tied(Closest(np.array([1.0, 2.0, 4.0])), np.array([7, 3, 7]))
    assert tied.size == 2 and tied.value(np.array([2.0, 3.0])) == pytest.approx([0.0, 4.0 + 1.0])
