"""Widths under a budget of milliseconds: the cost is a measured staircase, not a line.

A loss surrogate is minimised by the multiple-choice knapsack over the widest multiple of the quantum on each stair: a
narrower one costs the same. A shape is scaled as
far up as its nearest multiples stay within the time, and then takes the steps that are still affordable; on a staircase
many are free.
"""

import numpy as np

from geowidth.allocate.distinct import Items, limit_widths, thin_grid
from geowidth.allocate.knapsack import choose_within
from geowidth.allocate.rounding import Closest, Rounding, Tied, bounds_in_steps, tied_bounds
from geowidth.errors import UserError

_MOST_CHOICES = 2**24  # layers times widths of one knapsack
_MOST_MULTIPLES = 2**16  # of the quantum, up to the widest measured width
_SLACK = 1e-9  # sums of the same times in another order differ in the last digits


def fit_time(shape, objective, cost, budget, floor, cap, step, tied=None, limit=None):
    """(real widths, Rounding) under `budget` milliseconds of a TableCost.

    shape: relative widths (layers,), or None to minimise `objective`, a Surrogate, instead.
    """
    low, high = bounds_in_steps(floor, np.minimum(cap, cost.widths[-1]), step)
    smallest, largest = cost.total(low * step), cost.total(high * step)
    if not smallest * (1 - _SLACK) <= budget <= largest * (1 + _SLACK):
        wrong = "below the floors" if budget < smallest else "above the caps or the widest measured width"
        raise UserError(
            f"budget {budget:g} milliseconds is {wrong}; feasible: {smallest:g} to {largest:g}; change the budget, the "
            f"floors, the caps or the cost table"
        )
    room = budget * (1 + _SLACK)
    if shape is None:
        rounding = _minimise(_items(objective, None, cost, room, low, high, step), cost, limit)
        return rounding.widths.astype(np.float64), rounding
    if int(high.max()) > _MOST_MULTIPLES:
        raise UserError(
            f"the cost table ends at width {cost.widths[-1]}, {int(high.max())} multiples of {step}; "
            f"allowed: {_MOST_MULTIPLES}: take a larger quantum, or cap the widths"
        )
    real = _scale(shape, cost, room, low, high, step, tied)
    items = _items(Closest(real), tied, cost, room, low, high, step)
    filled = _filled(items, cost, real, step)
    nearest = _nearest(real, low, high, step)
    if limit is not None and max(len(np.unique(nearest)), len(np.unique(filled.widths))) > limit:
        return real, _minimise(items, cost, limit)
    return real, filled


def uniform_time_width(cost, layers, budget):
    """The widest measured width whose `layers` FFNs take at most `budget` milliseconds; refuses if there is none."""
    fits = np.flatnonzero(cost.milliseconds * layers <= budget * (1 + _SLACK))
    if not fits.size:
        least = cost.milliseconds[0] * layers
        raise UserError(f"budget {budget:g} milliseconds is below {least:g}, what the narrowest measured width takes")
    return int(cost.widths[fits[-1]])


def _items(objective, tied, cost, room, low, high, step):
    objective = Tied(objective, np.arange(len(low)) if tied is None else tied)
    bottom, top = tied_bounds(objective, low, high)
    members = np.bincount(objective.labels)

    def spend(widths):
        inside = np.minimum(widths, cost.widths[-1])  # wider ones are out of bounds, whatever they cost
        return members[:, None] * cost.of(inside)[None, :]

    grid = thin_grid(int(bottom.min()), int(top.max()), step, objective.size)
    ends = int(bottom.min()) * step, int(top.max()) * step
    return Items(objective, spend, bottom * float(step), top * float(step), room, step, grid, False, ends)


def _minimise(items, cost, limit):
    grid = _candidates(items, cost)
    if len(grid) * items.objective.size > _MOST_CHOICES:
        raise UserError(
            f"{len(grid)} widths for each of {items.objective.size} layers are too many to choose from; "
            "measure fewer widths for the cost table"
        )
    costs, values = items.tables(grid)
    choice = choose_within(list(costs), list(values), items.room)
    widths = grid[choice.picks][items.objective.labels]
    free = Rounding(widths, choice.value, choice.lower, choice.exact)
    if limit is None or len(np.unique(widths)) <= limit:
        return free
    return limit_widths(items, limit, free.lower)


def _candidates(items, cost):
    """Widths among which every item's best one is, int64: the widest of each stair, the bounds, those next to a target.

    On a stair all widths cost the same, and both objectives are better the nearer a width is to the best one.
    """
    found = [cost.widths // items.step * items.step, items.floor, items.cap]
    if isinstance(items.objective.objective, Closest):
        labels = items.objective.labels
        common = np.bincount(labels, items.objective.objective.target) / np.bincount(labels)
        below = np.floor(common / items.step) * items.step
        found += [below, below + items.step]
    grid = np.unique(np.concatenate(found)).astype(np.int64)
    return grid[(grid >= items.floor.min()) & (grid <= items.cap.max())]


def _nearest(real, low, high, step):
    return np.clip(np.floor(real / step + 0.5).astype(np.int64), low, high) * step


def _scale(shape, cost, room, low, high, step, tied):
    """The greatest multiple of the shape whose nearest multiples of the step fit, clipped to the bounds."""
    bounds = low * float(step), high * float(step)
    small, large = 0.0, float((bounds[1] / shape).max()) + step
    for _ in range(200):  # the bounds may be 2^112 apart
        middle = 0.5 * (small + large)
        fits = cost.total(_nearest(np.clip(middle * shape, *bounds), low, high, step)) <= room
        small, large = (middle, large) if fits else (small, middle)
    return np.clip(small * shape, *bounds)


def _filled(items, cost, real, step):
    """The nearest multiples, then affordable steps where the shape gains most (or loses least) until there is none.

    Free steps along a flat of the staircase never make a layer wider than one that the shape makes wider.
    """
    objective = items.objective
    members = np.bincount(objective.labels)
    common = np.bincount(objective.labels, real) / members
    low, high = (items.floor / step).astype(np.int64), (items.cap / step).astype(np.int64)
    widths = _nearest(common, low, high, step)
    left = items.room - float(members @ cost.of(widths))
    nearest = float(objective.value(widths * 1.0).sum())
    while True:
        wider = np.minimum(widths + step, items.cap).astype(np.int64)
        price = members * (cost.of(wider) - cost.of(widths))
        open_to = np.flatnonzero((wider == widths + step) & (price <= left) & (wider <= _ceiling(common, widths)))
        if not open_to.size:
            break
        gain = objective.value(widths * 1.0) - objective.value(wider * 1.0)
        best = open_to[np.argmax(gain[open_to])]
        left -= price[best]
        widths[best] = wider[best]
    value = float(objective.value(widths * 1.0).sum())
    return Rounding(widths[objective.labels], value, nearest, value == nearest)


def _ceiling(shape, widths):
    """The least of the widths of all items with a greater shape, (items,); inf for the greatest."""
    order = np.argsort(shape)
    from_here = np.append(np.minimum.accumulate(widths[order][::-1])[::-1], np.inf)
    return from_here[np.searchsorted(shape[order], shape + 1e-9 * np.abs(shape), side="right")]
