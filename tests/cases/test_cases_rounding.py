"""Rounding against brute force at every scale: the value is the best there is, its bound is proven, and it returns."""

import itertools
import math

import numpy as np
import pytest

from geowidth.allocate.distinct import round_distinct
from geowidth.allocate.knapsack import choose_within
from geowidth.allocate.rounding import Closest, paying, round_widths
from geowidth.allocate.surrogate import Surrogate
from geowidth.allocate.timed import fit_time
from geowidth.artifacts.cost import LinearCost, TableCost
from geowidth.errors import UserError

SCALES = (1e-300, 1e-40, 1e-12, 1e-6, 1.0, 1e6, 1e12, 1e40, 1e300)


def random_prices(generator, layers, equal):
    unit = int(10 ** generator.integers(0, 7))
    prices = np.full(layers, generator.integers(1, 6)) if equal else generator.integers(1, 6, layers)
    return LinearCost("parameters", prices * unit, generator.integers(0, 3, layers))


def random_rounding(generator, scale):
    """(surrogate, cost, budget, floor, cap, step, labels or None) of a case small enough to list."""
    layers, step = int(generator.integers(1, 5)), int(generator.choice([1, 2, 3, 8, 1024]))
    coefficient = generator.gamma(1, 1, layers) * scale * (generator.random(layers) > 0.2)
    exponent = (
        10.0 ** generator.uniform(-12, 1, layers) if generator.random() < 0.3 else generator.uniform(0.05, 2, layers)
    )
    exponent = np.full(layers, exponent[0]) if generator.random() < 0.3 else exponent
    cost = random_prices(generator, layers, generator.random() < 0.4)
    labels = generator.integers(0, 2, layers) if generator.random() < 0.5 else None
    low = generator.integers(1, 4, layers) if labels is None else generator.integers(1, 4, 2)[labels]
    high = low + (generator.integers(0, 6, layers) if labels is None else generator.integers(0, 6, 2)[labels])
    smallest, largest = cost.total(low, step), cost.total(high, step)
    budget = int(generator.choice([smallest, largest, generator.integers(smallest, largest + 1)]))
    # Without caps nothing may change but the widths that the budget alone keeps out.
    cap = np.where(generator.random() < 0.3, np.inf, high * float(step))
    return Surrogate(coefficient, exponent), cost, budget, low * float(step), np.broadcast_to(cap, layers), step, labels


def items_of(labels, layers):
    """The layers that share a width, as lists."""
    return [[i] for i in range(layers)] if labels is None else [np.flatnonzero(labels == k) for k in np.unique(labels)]


def all_widths(cost, budget, floor, cap, step, labels):
    """All widths within the budget and the bounds, or None where there are more than 2,000."""
    items, room, ranges = items_of(labels, len(floor)), budget - cost.total(floor), []
    for item in items:
        most = room // (int(cost.per_width[item].sum()) * step)
        lowest, limit = int(floor[item[0]]), int(min(cap[item[0]], 2**53))
        ranges.append(range(lowest, min(lowest + most * step, limit) + 1, step))
    if math.prod(map(len, ranges)) > 2000:
        return None
    listed = []
    for chosen in itertools.product(*ranges):
        widths = np.zeros(len(floor), np.int64)
        for item, width in zip(items, chosen, strict=True):
            widths[item] = width
        listed += [widths] if cost.total(widths) <= budget else []
    return listed


def check_widths(widths, cost, budget, floor, cap, step, labels):
    """What all widths must keep: the budget, spent to less than one more step; the bounds; the quantum; ties."""
    left = budget - cost.total(widths)
    assert left >= 0 and not (widths % step).any() and (widths >= floor).all() and (widths <= cap).all()
    for item in items_of(labels, len(widths)):
        assert len(set(widths[item].tolist())) == 1
        assert widths[item[0]] + step > cap[item[0]] or left < int(cost.per_width[item].sum()) * step


@pytest.mark.parametrize("scale", SCALES)
def test_rounding_of_surrogates_is_the_best_of_all_at_every_scale(scale):
    generator, compared = np.random.default_rng(abs(int(math.log10(scale)))), 0
    for _ in range(60):
        surrogate, *case = random_rounding(generator, scale)
        listed = all_widths(*case)
        found = round_widths(surrogate, *case[:5], tied=case[5])
        check_widths(found.widths, *case)
        if listed is None:
            continue
        best = min(math.fsum(surrogate.value(w.astype(float))) for w in listed)
        assert found.exact and found.gap == 0.0
        assert found.objective == pytest.approx(best, rel=1e-11, abs=0)
        assert found.lower == pytest.approx(best, rel=1e-11, abs=0)
        compared += 1
    assert compared > 25


def test_rounding_of_shapes_is_the_closest_of_all_where_it_says_so():
    generator, compared = np.random.default_rng(7), 0
    for _ in range(300):
        _, cost, budget, floor, cap, step, labels = case = random_rounding(generator, 1.0)
        listed = all_widths(*case[1:])
        if listed is None:
            continue
        shape = Closest(generator.uniform(floor * 0.8, floor + 4 * step))
        found = round_widths(shape, *case[1:6], tied=labels)
        check_widths(found.widths, *case[1:])
        rewarded = shape if labels is None and cost.equal else paying(shape, cost, step)
        if rewarded is shape:  # equal prices: of the widths that spend the most
            most = max(cost.total(w) for w in listed)
            listed = [w for w in listed if cost.total(w) == most]
        best, unit = min(math.fsum(rewarded.value(w)) for w in listed), 1e-10 * step**2
        assert found.lower <= best + unit and found.objective >= best - unit
        assert not found.exact or found.objective <= best + unit
        compared += found.exact
    assert compared > 150


ENDLESS = {
    "all idle, tied": ([0, 0, 0], [1, 1, 1], [1, 2, 3], [0, 0, 1], 2**53),
    "one idle, tied": ([0, 1, 1], [1, 1, 1], [1, 2, 3], [0, 1, 1], 10**9),
    "idle at equal prices": ([0, 0, 0], [1, 1, 1], [2, 2, 2], None, 2**53),
    "flat": ([1, 1, 1], [1e-300] * 3, [1, 2, 3], None, 2**50),
    "nearly flat": ([1, 1, 1], [1e-12] * 3, [1, 2, 3], [0, 0, 1], 2**50),
    "flat at equal prices": ([1, 1, 1], [1e-300] * 3, [3, 3, 3], None, 2**50),
    "steep": ([1, 1, 1], [1e6] * 3, [1, 2, 3], None, 2**50),
    "flat beside steep": ([1, 1, 1], [1e-9, 1, 100], [1, 2, 3], None, 2**50),
    "apart by 1e600": ([1e300, 1, 1e-300], [1, 1, 1], [1, 2, 3], None, 2**30),
    "smallest floats": ([5e-324, 1e-320, 0], [1, 1, 1], [1, 2, 3], None, 2**30),
    "prices apart by 1e12": ([1, 1, 1], [1, 1, 1], [2**40, 2**41, 3], None, 2**53),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_rounding_without_caps_returns_with_a_proven_bound(case):
    """Infinite caps once let the search grow without end: each of these must come back, within the budget."""
    coefficient, exponent, prices, tied, budget = ENDLESS[case]
    surrogate, cost = Surrogate(np.array(coefficient), np.array(exponent)), LinearCost("x", prices, [0, 0, 0])
    found = round_widths(surrogate, cost, budget, np.ones(3), np.full(3, np.inf), 1, tied)
    labels = None if tied is None else np.array(tied)
    check_widths(found.widths, cost, budget, np.ones(3), np.full(3, np.inf), 1, labels)
    assert 0 <= found.lower <= found.objective == math.fsum(surrogate.value(found.widths.astype(float)))
    assert found.exact == (found.lower == found.objective)


@pytest.mark.parametrize("scale", SCALES)
def test_the_knapsack_is_exact_at_every_scale(scale):
    generator = np.random.default_rng(5)
    for _ in range(40):
        costs = generator.integers(0, 12, (3, 4)).astype(float)
        values, budget = generator.gamma(1, 1, (3, 4)) * scale, float(generator.integers(6, 30))
        sums = [
            (sum(c), math.fsum(v)) for c, v in zip(itertools.product(*costs), itertools.product(*values), strict=True)
        ]
        best = min((value for cost, value in sums if cost <= budget), default=None)
        found = choose_within(list(costs), list(values), budget)
        if best is None:
            assert found is None
        else:
            assert found.exact and found.value == found.lower == pytest.approx(best, rel=1e-11, abs=0)


def test_bounds_count_whole_steps_however_many():
    """A floor of 0.25 of a width must not lose a step to rounding, nor a cap beyond 2^40 win one."""
    cost = LinearCost("width", [1, 1], [0, 0])
    wide = round_widths(Closest(np.full(2, 1e12)), cost, 2 * 10**12, [(1e12 / 3) * 3 + 1e-4, 1.0], [np.inf] * 2, 1)
    assert wide.widths.tolist() == [10**12, 10**12]
    tight = round_widths(Surrogate([1.0, 1.0], [1.0, 1.0]), cost, 2**52, [1.0, 1.0], [2.0**51 - 0.5, np.inf], 1)
    assert tight.widths.tolist() == [2**51 - 1, 2**51 + 1]


def random_stairs(generator):
    """(TableCost, floor, cap, budget, step, layers) of a case small enough to list."""
    widths = np.sort(generator.choice(np.arange(3, 40), int(generator.integers(1, 7)), replace=False))
    times = np.cumsum(generator.choice([0.0, 0.1, 0.3, 1.0], len(widths))) + 0.1
    table, step = TableCost(widths, times * 10.0 ** generator.integers(-9, 10)), int(generator.integers(1, 4))
    layers, top = int(generator.integers(1, 4)), int(widths[-1]) // step
    low = generator.integers(1, top + 1, layers)
    high = np.minimum(low + generator.integers(0, 8, layers), top)
    least, most = table.total(low * step), table.total(high * step)
    return table, low * float(step), high * float(step), float(generator.uniform(least, most)), step, layers


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_times_are_kept_and_the_surrogate_is_the_best_of_all(limit):
    generator, found_some = np.random.default_rng(3), 0
    for _ in range(80):
        table, floor, cap, budget, step, layers = random_stairs(generator)
        coefficient = (
            generator.gamma(1, 1, layers) * 10.0 ** generator.integers(-40, 41) * (generator.random(layers) > 0.2)
        )
        surrogate, shape = Surrogate(coefficient, generator.uniform(0.05, 2, layers)), generator.uniform(0.5, 2, layers)
        ranges = [range(int(a), int(b) + 1, step) for a, b in zip(floor, cap, strict=True)]
        listed = [np.array(w) for w in itertools.product(*ranges) if limit is None or len(set(w)) <= limit]
        listed = [w for w in listed if table.total(w) <= budget * (1 + 1e-9)]
        for given in ((None, surrogate), (shape, None)):
            if not listed:
                with pytest.raises(UserError, match="different widths for all layers"):
                    fit_time(*given, table, budget, floor, cap, step, None, limit)
                continue
            found = fit_time(*given, table, budget, floor, cap, step, None, limit)[1]
            assert table.total(found.widths) <= budget * (1 + 1e-9) and not (found.widths % step).any()
            assert (found.widths >= floor).all() and (found.widths <= cap).all()
            assert limit is None or len(set(found.widths.tolist())) <= limit
        if listed:
            found_some += 1
            found = fit_time(None, surrogate, table, budget, floor, cap, step, None, limit)[1]
            best = min(math.fsum(surrogate.value(w.astype(float))) for w in listed)
            assert found.lower <= best * (1 + 1e-11) and found.objective >= best * (1 - 1e-11)
            assert not found.exact or found.objective <= best * (1 + 1e-11)
            assert found.exact or limit is not None
    assert found_some > 20


@pytest.mark.parametrize("limit", [1, 2])
def test_few_widths_are_found_wherever_there_are_some_or_refused(limit):
    generator, found_some = np.random.default_rng(11), 0
    for _ in range(150):
        surrogate, *case = random_rounding(generator, 10.0 ** generator.integers(-30, 31))
        listed = all_widths(*case)
        if listed is None:
            continue
        few = [w for w in listed if len(set(w.tolist())) <= limit]
        if not few:
            with pytest.raises(UserError, match="different widths for all layers"):
                round_distinct(surrogate, *case[:5], limit, case[5])
            continue
        found = round_distinct(surrogate, *case[:5], limit, case[5])
        best = min(math.fsum(surrogate.value(w.astype(float))) for w in few)
        assert case[0].total(found.widths) <= case[1] and len(set(found.widths.tolist())) <= limit
        assert found.lower <= best * (1 + 1e-11) and not (found.exact and found.objective > best * (1 + 1e-11))
        found_some += 1
    assert found_some > 40


def test_stairs_of_two_billion_take_no_memory():
    """A table may end at a width of 2^31: only the widest width of each stair is looked at, or the table is refused."""
    table = TableCost([8, 2**31], [1.0, 2.0])
    surrogate, bounds = Surrogate([1.0, 2.0], [0.5, 0.5]), (np.ones(2), np.full(2, np.inf))
    assert fit_time(None, surrogate, table, 3.0, *bounds, 1)[1].widths.tolist() == [8, 2**31]
    with pytest.raises(UserError, match="take a larger quantum, or cap the widths"):
        fit_time(np.array([1.0, 2.0]), None, table, 3.0, *bounds, 1)
