"""The continuous optimum against closed forms, scipy's constrained optimiser, perturbations and the clock."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from geowidth.allocate.solve import fit_shape, solve_surrogate
from geowidth.allocate.surrogate import Surrogate
from geowidth.errors import UserError


def random_case(generator, layers, spread=1.0):
    """(surrogate, cost, budget, floor, cap) with some bounds active."""
    surrogate = Surrogate(generator.gamma(spread, 1.0, layers) + 1e-3, generator.uniform(0.05, 1.5, layers))
    cost = generator.uniform(1.0, 4.0, layers)
    floor = generator.uniform(1.0, 40.0, layers)
    cap = floor + generator.uniform(20.0, 400.0, layers)
    budget = cost @ (floor + generator.uniform(0.1, 0.9) * (cap - floor))
    return surrogate, cost, budget, floor, cap


def test_equal_layers_get_equal_widths():
    found = solve_surrogate(Surrogate(np.full(5, 2.0), np.full(5, 0.3)), 3.0, 15 * 70.0, 1.0, np.inf)
    assert found.widths == pytest.approx([70.0] * 5, rel=1e-14)
    assert found.ratio == pytest.approx(1.0, rel=1e-14)
    assert found.multiplier == pytest.approx(2.0 * 0.3 * 70.0**-1.3 / 3.0, rel=1e-12)


def test_common_exponent_closed_form(rng):
    coefficient, cost, rate = rng.gamma(1, 1, 8), rng.uniform(1, 3, 8), 0.4
    shape = (coefficient / cost) ** (1 / (1 + rate))
    expected = shape * 500.0 / (cost @ shape)
    found = solve_surrogate(Surrogate(coefficient, np.full(8, rate)), cost, 500.0, 1e-6, np.inf)
    assert found.widths == pytest.approx(expected, rel=1e-12)
    assert not found.at_floor and not found.at_cap and found.kkt_residual < 1e-13


def test_two_layers_different_exponents_closed_form():
    """a = (1, 2): 1/w_1^2 = nu = 2 * 4/w_2^3, so w_2 = 2 w_1^(2/3), and w_1 + w_2 = 8 + 8 at w_1 = 8."""
    found = solve_surrogate(Surrogate(np.array([1.0, 4.0]), np.array([1.0, 2.0])), 1.0, 16.0, 1e-3, np.inf)
    assert found.widths == pytest.approx([8.0, 8.0], rel=1e-13)
    assert found.multiplier == pytest.approx(1 / 64, rel=1e-12)


def test_floors_and_caps_are_named_and_met():
    surrogate = Surrogate(np.array([100.0, 1.0, 1.0, 1e-4]), np.full(4, 0.5))
    found = solve_surrogate(surrogate, 1.0, 400.0, 20.0, 150.0)
    assert found.at_cap == (0,) and found.at_floor == (3,)
    assert found.widths == pytest.approx([150.0, 115.0, 115.0, 20.0], rel=1e-12)
    assert found.kkt_residual < 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_scipy_finds_nothing_better(seed):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap = random_case(generator, int(generator.integers(2, 9)))
    found = solve_surrogate(surrogate, cost, budget, floor, cap)
    start = floor + (cap - floor) * (budget - cost @ floor) / (cost @ (cap - floor))
    oracle = minimize(
        lambda w: surrogate.value(w).sum(),
        start,
        jac=lambda w: -surrogate.coefficient * surrogate.exponent * w ** (-surrogate.exponent - 1),
        bounds=list(zip(floor, cap, strict=True)),
        constraints={"type": "eq", "fun": lambda w: (cost @ w - budget) / budget, "jac": lambda w: cost / budget},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    assert found.surrogate <= oracle.fun * (1 + 1e-9)
    assert found.widths == pytest.approx(oracle.x, rel=2e-3)
    assert cost @ found.widths == pytest.approx(budget, rel=1e-13)
    assert (found.widths >= floor).all() and (found.widths <= cap).all()
    assert found.kkt_residual < 1e-11


@given(seed=st.integers(0, 10**6), layers=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_random_feasible_perturbations_are_worse(seed, layers):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap = random_case(generator, layers)
    found = solve_surrogate(surrogate, cost, budget, floor, cap)
    for scale in (1e-3, 0.1, 10.0):
        moved = fit_shape(found.widths * np.exp(scale * generator.normal(size=layers)), cost, budget, floor, cap)
        assert cost @ moved == pytest.approx(budget, rel=1e-12)
        assert surrogate.value(moved).sum() >= found.surrogate * (1 - 1e-13)


@given(seed=st.integers(0, 10**6), layers=st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_widths_grow_with_the_budget_and_the_multiplier_falls(seed, layers):
    generator = np.random.default_rng(seed)
    surrogate, cost, budget, floor, cap = random_case(generator, layers)
    less = solve_surrogate(surrogate, cost, budget, floor, cap)
    more = solve_surrogate(surrogate, cost, 0.5 * (budget + cost @ cap), floor, cap)
    assert (more.widths >= less.widths * (1 - 1e-12)).all()
    assert more.multiplier <= less.multiplier * (1 + 1e-9)
    assert more.surrogate <= less.surrogate


@given(seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6))
@settings(max_examples=40, deadline=None)
def test_the_unit_of_work_changes_nothing(seed, scale):
    surrogate, cost, budget, floor, cap = random_case(np.random.default_rng(seed), 6)
    found = solve_surrogate(surrogate, cost, budget, floor, cap)
    scaled = Surrogate(surrogate.coefficient * scale, surrogate.exponent)
    other = solve_surrogate(scaled, cost, budget, floor, cap)
    assert other.widths == pytest.approx(found.widths, rel=1e-10)
    assert other.multiplier == pytest.approx(found.multiplier * scale, rel=1e-9)
    assert other.ratio == pytest.approx(found.ratio, rel=1e-12)


def test_idle_layers_sit_at_their_floors():
    surrogate = Surrogate(np.array([0.0, 1.0, 0.0, 2.0]), np.full(4, 0.4))
    found = solve_surrogate(surrogate, 1.0, 100.0, 8.0, np.inf)
    assert found.widths[[0, 2]] == pytest.approx([8.0, 8.0]) and found.at_floor == (0, 2)
    assert found.widths.sum() == pytest.approx(100.0) and found.kkt_residual < 1e-12


def test_one_working_layer_takes_all_and_has_its_multiplier():
    found = solve_surrogate(Surrogate(np.array([0.0, 3.0]), np.array([0.4, 0.5])), 1.0, 100.0, 8.0, np.inf)
    assert found.widths == pytest.approx([8.0, 92.0])
    assert found.multiplier == pytest.approx(3.0 * 0.5 * 92.0**-1.5, rel=1e-10)


def test_idle_layers_share_what_capped_ones_leave():
    found = solve_surrogate(Surrogate(np.array([0.0, 1.0, 0.0]), np.full(3, 0.4)), 1.0, 100.0, 8.0, 40.0)
    assert found.widths == pytest.approx([30.0, 40.0, 30.0]) and found.multiplier == 0.0


def test_no_work_at_all_is_uniform_with_ratio_one():
    found = solve_surrogate(Surrogate(np.zeros(4), np.full(4, 0.4)), 1.0, 100.0, 8.0, np.inf)
    assert found.widths == pytest.approx([25.0] * 4) and found.ratio == 1.0


@pytest.mark.parametrize("end", ["floor", "cap"])
def test_the_ends_of_the_feasible_range(end):
    floor, cap = np.array([3.0, 5.0]), np.array([30.0, 20.0])
    widths = floor if end == "floor" else cap
    found = solve_surrogate(Surrogate(np.ones(2), np.array([0.2, 0.9])), 2.0, 2 * widths.sum(), floor, cap)
    assert found.widths == pytest.approx(widths) and found.kkt_residual < 1e-12


def test_infeasible_budgets_name_the_range():
    surrogate = Surrogate(np.ones(3), np.full(3, 0.5))
    with pytest.raises(UserError, match="below the floors; feasible: 30 to 300"):
        solve_surrogate(surrogate, 1.0, 29.0, 10.0, 100.0)
    with pytest.raises(UserError, match="above the caps; feasible: 30 to 300"):
        solve_surrogate(surrogate, 1.0, 301.0, 10.0, 100.0)
    with pytest.raises(UserError, match="feasible|finite number"):
        solve_surrogate(surrogate, 1.0, np.nan, 10.0, 100.0)


def test_extreme_spreads_still_meet_the_budget():
    surrogate = Surrogate(np.logspace(-200, 200, 41), np.linspace(0.01, 5.0, 41))
    found = solve_surrogate(surrogate, 1.0, 41 * 1000.0, 1.0, 1e6)
    assert found.widths.sum() == pytest.approx(41000.0, rel=1e-12) and found.kkt_residual < 1e-9


def test_a_thousand_layers(rng):
    surrogate, cost, budget, floor, cap = random_case(rng, 1000)
    found = solve_surrogate(surrogate, cost, budget, floor, cap)
    assert found.kkt_residual < 1e-10 and found.at_floor and found.at_cap


def test_fit_shape_scales_clips_and_spends(rng):
    shape, cost = rng.uniform(0.1, 3.0, 9), rng.uniform(1, 2, 9)
    free = fit_shape(shape, cost, 700.0, np.zeros(9), np.full(9, np.inf))
    assert free == pytest.approx(shape * 700.0 / (cost @ shape), rel=1e-14)
    floor, cap = np.full(9, 20.0), np.full(9, 70.0)
    held = fit_shape(shape, cost, 700.0, floor, cap)
    assert cost @ held == pytest.approx(700.0, rel=1e-13)
    inside = (held > floor) & (held < cap)
    assert np.ptp(held[inside] / shape[inside]) < 1e-9
    assert fit_shape(shape, cost, cost @ cap, floor, cap) == pytest.approx(cap)
    assert fit_shape(shape, cost, cost @ floor, floor, cap) == pytest.approx(floor)
