"""Curves of single layers: fits that are convex whatever comes, exact where they can be; widths by them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geowidth.slicing.curves import POWERS, falling, fitted, values
from geowidth.slicing.targets import Keep
from geowidth.slicing.widths import slice_widths
from tests.slicing.width_models import evidence

REMOVED = np.array([0.25, 0.5, 0.75])


@settings(deadline=None)
@given(st.lists(st.floats(-1, 5), min_size=3, max_size=3), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_whatever_is_measured_the_curve_is_convex_and_falls_to_nothing(losses, errors):
    weights = fitted(REMOVED, np.array(losses), np.array(errors))
    assert (weights >= 0).all() and np.isfinite(weights).all()
    at = values(weights, np.linspace(0, 1, 101))
    assert at[0] == 0 and (np.diff(at) >= -1e-12).all() and (np.diff(at, 2) >= -1e-9 * max(1.0, at[-1])).all()


@pytest.mark.parametrize("power", [1, 2, 4])
def test_curves_of_the_kind_are_found(power):
    losses = 0.3 * REMOVED**power
    weights = fitted(REMOVED, losses, np.full(3, 0.01))
    np.testing.assert_allclose(values(weights, REMOVED), losses, atol=1e-9)


def test_a_layer_whose_loss_falls_is_worth_nothing():
    assert not fitted(REMOVED, np.array([-0.1, -0.2, -0.1]), np.zeros(3)).any()
    assert not fitted(REMOVED, np.zeros(3), np.zeros(3)).any()


def test_points_count_by_their_errors():
    steep = fitted(REMOVED, np.array([0.0, 0.0, 1.0]), np.array([0.01, 0.01, 10.0]))
    flat = fitted(REMOVED, np.array([0.0, 0.0, 1.0]), np.array([10.0, 10.0, 0.01]))
    assert values(flat, REMOVED)[2] == pytest.approx(1.0, abs=1e-6)
    assert values(steep, REMOVED)[2] < 0.5


def test_gains_are_the_curve_neuron_by_neuron():
    weights = np.zeros(len(POWERS))
    weights[1] = 2.0
    gains = falling(weights, 4)
    np.testing.assert_allclose(gains, 2.0 * np.array([16 - 9, 9 - 4, 4 - 1, 1]) / 16)


def test_the_widths_have_the_least_fitted_sum():
    look = evidence(layers=3)
    found = slice_widths("curves", look, Keep(0.3), multiple=3, floor=1)
    weights = np.array(found.details["coefficients"])
    totals = {
        pick: sum(float(values(w, np.array([1 - p / 24]))[0]) for w, p in zip(weights, pick, strict=True))
        for pick in itertools.product(range(3, 25, 3), repeat=3)
        if sum(pick) <= found.budget["value"]
    }
    assert totals[found.widths] == pytest.approx(min(totals.values()), abs=1e-9)
    assert found.details["predicted"] == pytest.approx(totals[found.widths])
    assert sum(found.widths) == 21
