"""One choice for every layer at the least summed value within a budget: the multiple-choice knapsack.

Linear relaxation by the lower hulls of each layer's (cost, value) points (Sinha and Zoltners 1979) gives a lower bound
and a greedy answer; choices whose reduced cost exceeds the gap between the two cannot be in a better answer; what
remains is searched by dynamic programming over undominated partial answers (Pisinger 1995). The answer is exact unless
there are more than `states` of those at once; then the best found comes with the relaxation's bound.
"""

import math
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-12  # of the summed absolute values: what float64 keeps of a sum of many


def summed(values):
    """The sum of float64 values, correctly rounded."""
    return math.fsum(np.asarray(values).tolist())


@dataclass(frozen=True)
class Choice:
    """picks: the chosen index of every layer; value: their sum; lower: no answer is below it; exact: none is better."""

    picks: np.ndarray
    value: float
    lower: float
    exact: bool


@dataclass(frozen=True)
class Relaxation:
    """The linear relaxation: greedy integer picks, their value, a lower bound, the price of a unit of budget."""

    picks: np.ndarray
    value: float
    lower: float
    price: float


def lower_hull(cost, value):
    """Indices of the points on the decreasing lower convex hull, by rising cost: the choices worth paying for."""
    hull: list[int] = []
    for i in np.lexsort((value, cost)):
        if not np.isfinite(value[i]) or (hull and value[i] >= value[hull[-1]]):
            continue
        while len(hull) > 1 and _above(cost, value, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(int(i))
    return hull


def _above(cost, value, first, middle, last):
    """Whether `middle` lies on or above the line from `first` to `last`."""
    return (value[first] - value[middle]) * (cost[last] - cost[first]) <= (value[first] - value[last]) * (
        cost[middle] - cost[first]
    )


def relax(costs, values, budget):
    """The Relaxation, or None where even the cheapest choices exceed the budget.

    costs, values: one float64 array a layer; all costs finite, values may be inf (never chosen).
    """
    hulls = [lower_hull(c, v) for c, v in zip(costs, values, strict=True)]
    if not all(hulls):
        return None
    start = np.array([hull[0] for hull in hulls])
    spent = float(sum(c[i] for c, i in zip(costs, start, strict=True)))
    if spent > budget:
        return None
    steps = []
    for layer, hull in enumerate(hulls):
        for place, (a, b) in enumerate(zip(hull, hull[1:], strict=False)):
            rise, fall = costs[layer][b] - costs[layer][a], values[layer][a] - values[layer][b]
            steps.append((-fall / rise, layer, place, b, rise))
    steps.sort()
    return _take(start, steps, spent, budget, values)


def _take(start, steps, spent, budget, values):
    """Greedy answer and bound from hull steps in the order of their worth."""
    picks, bound, price = start.copy(), None, 0.0
    closed = set()
    for worth, layer, _, choice, rise in steps:
        if layer in closed:
            continue
        if spent + rise <= budget:
            spent += rise
            picks[layer] = choice
            continue
        if bound is None:  # the first step that does not fit, taken in part, solves the relaxation
            price, bound = -worth, picked(values, picks) + worth * (budget - spent)
        closed.add(layer)
    value = picked(values, picks)
    return Relaxation(picks, value, value if bound is None else bound, price)


def picked(values, picks):
    """The summed values of the picks. Taken from the table: differences of large values would lose a small sum."""
    return summed([v[i] for v, i in zip(values, picks, strict=True)])


def choose_within(costs, values, budget, states=50_000):
    """The Choice of least summed value with summed cost at most `budget`; None where there is none."""
    relaxed = relax(costs, values, budget)
    if relaxed is None:
        return None
    tolerance = TOLERANCE * picked([np.abs(v) for v in values], relaxed.picks)
    gap = relaxed.value - relaxed.lower
    if gap <= tolerance:
        return Choice(relaxed.picks, relaxed.value, relaxed.value, True)
    reduced = [v + relaxed.price * c for c, v in zip(costs, values, strict=True)]
    reduced = [r - r.min() for r in reduced]
    keep = [np.flatnonzero(r < gap - tolerance) for r in reduced]
    picks, exact = _search(costs, values, reduced, keep, budget, gap - tolerance, states)
    best, value = relaxed.picks, relaxed.value
    if picks is not None:
        found = picked(values, picks)
        if found < value:
            best, value = picks, found
    return Choice(best, value, value if exact else min(relaxed.lower, value), exact)


def _search(costs, values, reduced, keep, budget, gap, states):
    """Best picks among the kept choices, or None; and whether the search was complete."""
    cheapest = np.array([c[k].min() for c, k in zip(costs, keep, strict=True)])
    rest = cheapest.sum() - np.cumsum(cheapest)  # least cost of the layers still to come
    spent, value, slack = np.zeros(1), np.zeros(1), np.zeros(1)
    trail, exact = [], True
    for layer, kept in enumerate(keep):
        new_spent = (spent[:, None] + costs[layer][kept]).ravel()
        new_value = (value[:, None] + values[layer][kept]).ravel()
        new_slack = (slack[:, None] + reduced[layer][kept]).ravel()
        alive = np.flatnonzero((new_spent + rest[layer] <= budget) & (new_slack < gap))
        order = alive[np.lexsort((new_value[alive], new_spent[alive]))]
        least = np.minimum.accumulate(new_value[order])
        front = order[np.concatenate([[True], new_value[order][1:] < least[:-1]])] if order.size else order
        if front.size > states:
            exact = False
            front = np.sort(front[np.argsort(new_slack[front], kind="stable")[:states]])
        if not front.size:
            return None, exact
        trail.append((front // len(kept), kept[front % len(kept)]))
        spent, value, slack = new_spent[front], new_value[front], new_slack[front]
    place = int(np.argmin(value))
    picks = np.empty(len(keep), dtype=np.int64)
    for layer in range(len(keep) - 1, -1, -1):
        parent, choice = trail[layer]
        picks[layer], place = choice[place], parent[place]
    return picks, exact
