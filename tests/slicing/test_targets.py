"""Targets: what they leave for the FFNs, exactly, and what they refuse."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geowidth.artifacts.cost import TableCost
from geowidth.errors import UserError
from geowidth.slicing.targets import Keep, Latency, Parameters, Sizes, sizes_of

SIZES = Sizes((24, 24, 12), 16, 3, False, 10_000)


@settings(deadline=None)
@given(st.floats(1e-6, 1), st.lists(st.integers(1, 5000), min_size=1, max_size=9))
def test_a_share_is_the_most_neurons_that_do_not_exceed_it(share, widths):
    sizes = Sizes(tuple(widths), 16)
    exact = Fraction(str(share)) * sum(widths)
    if exact < len(widths):
        with pytest.raises(UserError, match="keep more"):
            Keep(share).budget(sizes)
        return
    amount = Keep(share).budget(sizes).amount
    assert amount <= exact < amount + 1


def test_a_share_means_what_its_digits_say():
    assert Keep(0.1 + 0.2).budget(Sizes((10,), 4)).amount == 3
    assert Keep(0.3).budget(Sizes((10,), 4)).amount == 3
    assert Keep(0.29).budget(Sizes((100,), 4)).amount == 29  # 0.29 * 100 is 28.999999999999996


@pytest.mark.parametrize("biases", [False, True])
def test_parameters_are_those_of_the_whole_model(biases):
    sizes = Sizes((24, 24, 12), 16, 2, biases, 10_000)
    one = sizes.total((23, 24, 12))
    assert 10_000 - one == 2 * 16 + biases
    budget = Parameters(one).budget(sizes)
    assert budget.amount == sizes.cost.total((23, 24, 12))
    assert sizes.total((23, 24, 12)) == one
    assert Parameters(one, added=48).budget(sizes).amount == budget.amount - 48


def test_shared_parameters_count_once():
    from tests.cascade.cascade_models import library

    model = library("llama", tie_word_embeddings=True)
    ffns = type("FFNs", (), {"model": model, "widths": (24,) * 3, "dimension": 16, "projections": 3, "biases": False})
    assert sizes_of(ffns).parameters == sum(t.numel() for n, t in model.state_dict().items() if n != "lm_head.weight")


def test_latency_is_the_sum_over_ffns():
    table = TableCost([8, 16, 24], [1.0, 1.5, 3.0], {"model_dimension": 16, "projections": 3})
    budget = Latency(6.0, table).budget(SIZES)
    assert (budget.unit, budget.amount, budget.whole) == ("milliseconds", 6.0, 7.5)
    assert budget.uniform == 16.0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: Keep(0), "above 0 and up to 1"),
        (lambda: Keep(1.01), "above 0 and up to 1"),
        (lambda: Keep(float("nan")), "above 0"),
        (lambda: Keep(True), "above 0"),
        (lambda: Keep("0.5"), "above 0"),
        (lambda: Keep(0.01).budget(SIZES), "3 layers need one each"),
        (lambda: Parameters(10_001).budget(SIZES), "ask for fewer"),
        (lambda: Parameters(7_000).budget(SIZES), "ask for 7264 or more"),
        (lambda: Parameters(1.5), "whole numbers"),
        (lambda: Parameters(5).budget(Sizes((4,), 8)), "is not known"),
        (lambda: Latency(-1, TableCost([1], [1.0])), "finite number above 0"),
        (lambda: Latency(1, TableCost([24], [1.0], {"model_dimension": 32})).budget(SIZES), "at model dimension 32"),
        (lambda: Latency(1, TableCost([16], [1.0])).budget(SIZES), "ends at width 16"),
        (lambda: Latency(9, TableCost([8, 24], [1.0, 2.0])).budget(SIZES), "ask for a time between"),
        (lambda: Latency(1, "/nowhere/cost.json"), "does not exist"),
        (lambda: Sizes((3, 0), 8), "layer 1 has no FFN"),
    ],
)
def test_wrong_targets_are_one_line(target, words):
    with pytest.raises(UserError, match=words) as caught:
        target()
    assert "\n" not in str(caught.value)


def test_the_uniform_width_is_what_the_budget_buys():
    budget = Parameters(10_000 - 48 * 6).budget(SIZES)
    assert budget.uniform == pytest.approx((24 + 24 + 12 - 6) / 3)
    assert np.isclose(budget.share(SIZES), 54 / 60)
