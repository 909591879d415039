"""Paired evidence against scipy's paired t test, brute force over all sign flips, and simulated power."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from geowidth import records
from geowidth.errors import UserError
from geowidth.train.evidence import (
    EXACT_SEEDS,
    compare_arms,
    paired_difference,
    seeds_for_power,
    sign_flip_p,
    t_power,
)

finite = st.floats(-10, 10, allow_nan=False, allow_subnormal=False)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_is_that_of_the_paired_t_test(rng, n, confidence):
    a, b = rng.normal(2, 0.1, n), rng.normal(2.05, 0.1, n)
    losses = {"uniform": dict(enumerate(b)), "cosine": dict(enumerate(a))}
    difference = compare_arms(losses, confidence=confidence).arm("cosine").difference
    test = stats.ttest_rel(a, b)
    wanted = test.confidence_interval(confidence)
    assert difference.interval == pytest.approx((wanted.low, wanted.high), rel=1e-9)
    assert difference.mean == pytest.approx(np.mean(a - b), rel=1e-12)
    assert difference.standard_error == pytest.approx(stats.sem(a - b), rel=1e-12)
    assert difference.mean / difference.standard_error == pytest.approx(test.statistic, rel=1e-9)


def flips(values):
    """Brute force: the share of sign flips whose sum is at least as far from 0."""
    sums = [abs(math.fsum(s * v for s, v in zip(signs, values, strict=True))) for signs in all_signs(len(values))]
    return np.mean([total >= abs(math.fsum(values)) - 1e-12 * math.fsum(map(abs, values)) for total in sums])


def all_signs(n):
    return itertools.product((1, -1), repeat=n)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=9))
def test_sign_flips_are_all_counted(values):
    assert sign_flip_p(values) == flips(values)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=10), st.randoms())
def test_p_does_not_depend_on_order_sign_or_unit(values, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    p = sign_flip_p(values)
    assert sign_flip_p(shuffled) == sign_flip_p([-v for v in values]) == sign_flip_p([4 * v for v in values]) == p
    assert 2.0 ** (1 - len(values)) <= p <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 6, 10])
def test_smallest_p(n):
    d = paired_difference([0.5 + i for i in range(n)])
    assert d.sign_flip_p == d.smallest_p == 2 / 2**n


def test_ties_and_zeros():
    assert sign_flip_p([0, 0, 0]) == 1
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1
    assert sign_flip_p([0.1 + 0.2, -0.3]) == 1  # a tie but for rounding


def test_many_seeds_are_sampled(rng):
    values = rng.normal(0.3, 1, EXACT_SEEDS + 6)
    p = sign_flip_p(values)
    assert p == sign_flip_p(values)
    assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)
    assert not paired_difference(values).sign_flip_exact


@pytest.mark.parametrize(("n", "ratio"), [(3, 1.0), (5, 1.5), (20, 0.6)])
def test_power_is_how_often_the_t_test_sees_it(rng, n, ratio):
    sample = rng.normal(ratio, 1, (40_000, n))
    seen = np.mean(stats.ttest_1samp(sample, 0, axis=1).pvalue < 0.05)
    assert t_power(n, 1.0, ratio) == pytest.approx(seen, abs=0.01)


@pytest.mark.parametrize(("spread", "effect"), [(0.02, 0.01), (0.005, 0.01), (0.3, 0.01), (1e-9, 0.01)])
def test_needed_seeds_are_the_fewest(spread, effect):
    n = seeds_for_power(spread, effect)
    assert t_power(n, spread, effect) >= 0.8
    assert n == 2 or t_power(n - 1, spread, effect) < 0.8


def test_needed_seeds_at_the_ends():
    assert seeds_for_power(0.0, 0.01) == 2
    assert seeds_for_power(100.0, 0.001) is None
    assert seeds_for_power(1.0, 0.5, 0.8) == 34  # the textbook's sample size for a medium effect


def test_one_seed_says_nothing():
    comparison = compare_arms({"uniform": {0: 2.0}, "cosine": {0: 1.9}})
    difference = comparison.arm("cosine").difference
    assert difference.interval is None and difference.standard_error is None and difference.seeds_needed is None
    assert difference.sign_flip_p == 1
    assert "nothing can be said" in comparison.sentence


def losses(*differences):
    arm = {seed: 2.0 + difference for seed, difference in enumerate(differences)}
    return {"uniform": dict.fromkeys(arm, 2.0), "a": arm}


def test_sentences_claim_no_more_than_was_seen():
    three = compare_arms(losses(-0.05, -0.051, -0.049)).sentence
    assert "0.0500 nats per byte below uniform" in three and "cannot go below 0.25" in three
    assert "6 seeds are the fewest that could reach 0.05" in three
    assert "lower than uniform's by both tests" in compare_arms(losses(*[-0.05 - 0.001 * i for i in range(7)])).sentence
    assert "higher than uniform's" in compare_arms(losses(*[0.05 + 0.001 * i for i in range(7)])).sentence
    unseen = compare_arms(losses(-0.05, 0.04, 0.02)).sentence
    assert "no difference from uniform is seen" in unseen and "No arm can be told" in unseen
    assert "a: no difference" in compare_arms(losses(0, 0, 0)).sentence
    assert "nothing to compare" in compare_arms({"uniform": {0: 1.0}}).sentence


def test_record_is_strict_json():
    comparison = compare_arms(losses(-0.05, 0.04, np.float64(0.02)))
    record = records.loads(records.dumps(comparison.to_json({"a": {"widths": (1, 2)}})))
    assert record["kind"] == "geowidth.comparison" and record["baseline"] == "uniform"
    arm = record["arms"][1]
    assert arm["arm"] == "a" and arm["widths"] == [1, 2] and arm["losses"]["1"] == 2.04
    assert set(arm["difference"]["seeds_for_power"]) == {"effect", "power", "seeds"}
    assert record["arms"][0]["difference"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"losses": {"uniform": {0: 1.0}, "a": {1: 1.0}}}, r"arm a has seeds \[1\], uniform has \[0\]"),
        ({"losses": {"a": {0: 1.0}}}, "baseline is 'uniform'; allowed: a"),
        ({"losses": {"uniform": {}}}, "train the same seeds"),
        ({"losses": {"uniform": {0: 1.0}, "a": {0: math.nan}}}, "arm a seed 0 has loss nan"),
        ({"confidence": 1.0}, "confidence"),
        ({"power": 0}, "power"),
        ({"effect": -1}, "effect"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, words):
    with pytest.raises(UserError, match=words):
        compare_arms(**{"losses": losses(1, 2), **arguments})
