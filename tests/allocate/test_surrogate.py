"""Coefficients, exponents, smoothing: closed forms and the unit trap."""

import numpy as np
import pytest

from geowidth.allocate.solve import solve_surrogate
from geowidth.allocate.surrogate import Surrogate, calibrated_surrogate, exponents, smooth
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError


def test_smoothing_weights_and_ends():
    assert smooth([4.0, 0.0, 0.0, 8.0]) == pytest.approx([8 / 3, 1.0, 2.0, 16 / 3])
    assert smooth([5.0]) == pytest.approx([5.0])
    assert smooth([1.0, 4.0]) == pytest.approx([2.0, 3.0])
    assert smooth([7.0] * 5) == pytest.approx([7.0] * 5)


def test_smoothing_is_the_weighted_mean_written_out(rng):
    work = rng.gamma(2.0, 1.0, 11)
    weights = {-1: 1.0, 0: 2.0, 1: 1.0}
    for layer, value in enumerate(smooth(work)):
        near = {k: w for k, w in weights.items() if 0 <= layer + k < len(work)}
        assert value == pytest.approx(sum(w * work[layer + k] for k, w in near.items()) / sum(near.values()))


def test_exponents_from_dimension_number_and_list():
    assert exponents("dimension", 3, [4.0, 8.0, 10.0]) == pytest.approx([0.5, 0.25, 0.2])
    assert exponents("dimension", 2, [4.0, 8.0], smoothness=2.0) == pytest.approx([1.0, 0.5])
    assert exponents(0.3, 3) == pytest.approx([0.3] * 3)
    assert exponents([0.1, 0.2], 2) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dimension", 2), "needs a work profile"),
        (("dimension", 2, [3.0, np.nan]), "layer 1 is nan"),
        (("dimension", 2, [0.0, 3.0]), "layer 0 is 0.0"),
        (("dimension", 2, [3.0, 3.0, 3.0]), "3 numbers for 2 layers"),
        (("dimenson", 2), "'dimenson'; allowed"),
        ((0.0, 2), "above 0"),
        (([0.1, np.inf], 2), "layer 1 is inf"),
        (([0.1, 0.2, 0.3], 2), "3 numbers for 2 layers"),
        ((None, 2), "exponent is None; give one number"),
        (([[1.0], [2.0]], 2), "2 numbers for 2 layers"),
        (({"a": 1}, 2), "give one number"),
    ],
)
def test_bad_exponents_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        exponents(*arguments)


def test_calibration_gives_the_work_back_at_the_reference(rng):
    work, width, rate = rng.gamma(2, 1, 7), rng.integers(50, 500, 7), rng.uniform(0.05, 1.5, 7)
    assert calibrated_surrogate(work, width, rate).value(width.astype(float)) == pytest.approx(work, rel=1e-13)


def test_gain_is_the_difference_of_values_without_cancellation(rng):
    surrogate = Surrogate(rng.gamma(2, 1, 5), rng.uniform(0.05, 1.5, 5))
    width = rng.uniform(10, 100, 5)
    assert surrogate.gain(width, 3.0) == pytest.approx(surrogate.value(width) - surrogate.value(width + 3.0), rel=1e-10)
    # Beside a width of 1e9 one unit changes a value in its last digits; the derivative says what the gain must be.
    wide = np.full(5, 1e9)
    slope = surrogate.coefficient * surrogate.exponent * wide ** (-surrogate.exponent - 1)
    assert surrogate.gain(wide, 1.0) == pytest.approx(slope, rel=1e-8)


def test_unit_trap_the_unit_of_width_changes_nothing(rng):
    """Counting widths in blocks of 64 instead of units gives the same widths, unequal exponents or not."""
    work, rate, cost = rng.gamma(1, 1, 9), rng.uniform(0.05, 1.5, 9), rng.uniform(1, 3, 9)
    width = np.full(9, 1024.0)
    fine = solve_surrogate(calibrated_surrogate(work, width, rate), cost, cost @ width, 64.0, np.inf)
    block = solve_surrogate(calibrated_surrogate(work, width / 64, rate), cost * 64, cost @ width, 1.0, np.inf)
    assert block.widths * 64 == pytest.approx(fine.widths, rel=1e-10)
    assert block.ratio == pytest.approx(fine.ratio, rel=1e-12)


def test_unit_trap_without_calibration_the_order_reverses():
    """Why the calibration is there: c_l = e_l lets the unit of width decide which of two layers is wider."""
    work, rate, cost = np.array([1.0, 1.0]), np.array([0.2, 1.0]), np.ones(2)
    in_units = solve_surrogate(Surrogate(work, rate), cost, 2048.0, 1e-6, np.inf).widths
    in_blocks = solve_surrogate(Surrogate(work, rate), cost, 2.0, 1e-6, np.inf).widths
    assert in_units[0] > in_units[1] and in_blocks[0] < in_blocks[1]


def test_overflowing_calibration_is_refused():
    with pytest.raises(UserError, match="smaller exponents"):
        calibrated_surrogate([1.0], [1e6], [60.0])


def test_per_layer_names_what_is_wrong():
    with pytest.raises(UserError, match="work of layer 1 is -1.0; allowed: finite numbers, 0 or more"):
        per_layer("work", [1.0, -1.0], 2)
    with pytest.raises(UserError, match="work of layer 0 is nan"):
        per_layer("work", [np.nan, 1.0], 2)
