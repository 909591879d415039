"""Rounding to at most K different widths, so that compilers which specialise per shape see few of them.

For one price nu of the budget the best K widths are found exactly: an objective convex in each width lets every layer
take one of the two chosen widths around its own best, so a dynamic program over the candidate widths, with the summed
costs of the layers between two neighbours, is a shortest path with K edges. The best nu gives a lower bound (Lagrange
duality) and sets of widths; each set is then filled by the multiple-choice knapsack under the true budget, and improved
by moving one width at a time. The difference to the bound is the reported gap.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from geowidth.allocate.knapsack import choose_within, relax
from geowidth.allocate.rounding import Closest, Rounding, Tied, bounds_in_steps, paying, round_widths, tied_bounds
from geowidth.errors import UserError

_WORK = 2**22  # layers * candidates^2 of one dynamic program: about 20 ms
_PRICES = 40
_MOST_FLOORS = 1024
_MOST_GROUPED = 4096  # layers whose groups are compared pair by pair: 8 n^2 bytes


def round_distinct(objective, cost, budget, floor, cap, step, limit, tied=None):
    """`round_widths` with at most `limit` different widths among the layers."""
    free = round_widths(objective, cost, budget, floor, cap, step, tied)
    if len(np.unique(free.widths)) <= limit:
        return free
    paid = paying(objective, cost, step)
    tied_objective = Tied(paid, np.arange(len(floor)) if tied is None else tied)
    items = _linear_items(tied_objective, cost, budget, floor, cap, step, free.widths)
    # No limited widths are better than the best unlimited ones: a bound where the dual gives none.
    lower = round_widths(paid, cost, budget, floor, cap, step, tied).lower
    if isinstance(paid, Closest) and cost.equal and len(paid.target) <= _MOST_GROUPED:
        # Nor than the best limited real ones, less all that spending the budget can be rewarded with.
        over = (budget - cost.total(0)) / cost.per_width[0] - paid.target.sum()
        lower = max(lower, least_squares_with(paid.target, limit) - float(np.max(paid.reward)) * over)
    return limit_widths(items, limit, lower)


def least_squares_with(target, limit):
    """The least sum of squared distances of `target` (layers,) to at most `limit` real values: exact one-dimensional
    means.

    The layers of one value are neighbours in sorted order, so a dynamic program over cuts finds the best groups.
    """
    ordered = np.sort(target - target.mean())
    total, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (ordered, ordered**2))
    count = len(ordered)
    ends = np.arange(count + 1)
    size = np.maximum(ends[None, :] - ends[:, None], 1)
    group = squares[None, :] - squares[:, None] - (total[None, :] - total[:, None]) ** 2 / size
    group[ends[:, None] > ends[None, :]] = np.inf
    best = group[0]
    for _ in range(min(limit, count) - 1):
        best = (best[:, None] + group).min(axis=0)
    return max(0.0, float(best[-1]))


def limit_widths(items, limit, lower):
    """The Rounding with at most `limit` widths; lower: what no widths at all are below."""
    cheapest = _cheapest(items, limit)
    sets, bound = _dual(items, limit)
    sets.add(cheapest)
    chosen, pool = _improve(items, sets)
    value = float(items.objective.value(pool[chosen.picks].astype(np.float64)).sum())
    bound = max(bound, lower)
    widths = pool[chosen.picks][items.objective.labels]
    return Rounding(widths, value, min(bound, value), bool(value <= bound + 1e-12 * abs(value)))


@dataclass(frozen=True)
class Items:
    """Layers (or sets of tied ones): what widths cost them, their bounds, the room in the budget, candidate widths.

    spend(widths) -> float64 (items, widths). linear: whether costs are linear in width, which the dual's bound needs.
    ends: the least and greatest width that could be taken at all.
    """

    objective: Tied
    spend: Callable
    floor: np.ndarray
    cap: np.ndarray
    room: float
    step: int
    grid: np.ndarray
    linear: bool
    ends: tuple

    def tables(self, widths):
        """(costs, values), float64 (items, widths); values of widths out of bounds are inf."""
        widths = np.asarray(widths, dtype=np.float64)
        values = np.stack([self.objective.value(np.full(len(self.floor), w)) for w in widths], axis=1)
        values[(widths < self.floor[:, None]) | (widths > self.cap[:, None])] = np.inf
        return self.spend(widths), values

    def bounding(self, ideal):
        """Whether no better set of widths lies outside the candidates, given each item's best one by index.

        All chosen widths lie between the least and the greatest of the items' own best widths, by convexity; so it is
        enough that the candidates have no holes and those two are not where the candidates end too early.
        """
        whole = bool((np.diff(self.grid) == self.step).all())
        low = ideal.min() > 0 or self.grid[0] <= self.ends[0]
        high = ideal.max() < len(self.grid) - 1 or self.grid[-1] >= self.ends[1]
        return self.linear and whole and bool(low and high)


def thin_grid(first, last, step, size):
    """Multiples of `step` from first to last steps, as many as a dynamic program over `size` items can take in."""
    stride = max(1, -(-(last + 1 - first) // int(np.sqrt(_WORK / size))))
    return np.union1d(np.arange(first, last + 1, stride), [first, last]) * step


def _linear_items(objective, cost, budget, floor, cap, step, near):
    low, high = tied_bounds(objective, *bounds_in_steps(floor, cap, step))
    price = np.bincount(objective.labels, cost.per_width, objective.size)
    room = float(budget - cost.fixed.sum())
    # No width can cost more than what is left when all others are at their floors.
    reach = np.minimum(high, low + np.floor((room / step - price @ low) / price).astype(np.int64))
    first, last = int(low.min()), int(reach.max())
    # Widths near those without a limit, with a margin, as far as there is room for candidates.
    around = int(near.min()) // step, int(near.max()) // step
    margin = max(4, (int(np.sqrt(_WORK / objective.size)) - (around[1] - around[0])) // 2 - 1)
    grid = thin_grid(max(first, around[0] - margin), min(last, around[1] + margin), step, objective.size)
    bounds = low * float(step), high * float(step)
    return Items(objective, lambda w: price[:, None] * w, *bounds, room, step, grid, True, (first * step, last * step))


def _dual(items, limit):
    """Sets of at most `limit` widths that are best at some price of the budget, and the greatest lower bound."""
    costs, values = items.tables(items.grid)
    low, high = 0.0, None
    bound, sets = -np.inf, set()
    rise, fall = float(np.ptp(costs)), float(np.ptp(values[np.isfinite(values)]))
    price = fall / rise if rise else 0.0
    price = price if 0.0 < price < np.inf else 1.0
    for _ in range(_PRICES):
        total, chosen = best_set(values + price * costs, limit)
        if np.isfinite(total):
            if items.bounding(np.argmin(values + price * costs, axis=1)):
                bound = max(bound, total - price * items.room)
            sets.add(tuple(items.grid[chosen].tolist()))
        spent = _spent(costs, values, price, chosen)
        low, high = (price, high) if spent > items.room else (low, price)
        price = price * 4.0 if high is None else 0.5 * (low + high)
    return sets, bound


def _cheapest(items, limit):
    """The at most `limit` widths that cost the least; refuses where there are none within the bounds or the budget.

    Each of them is the floor of an item: one that is no item's floor could be narrower.
    """
    floors = np.unique(items.floor).astype(np.int64)
    if len(floors) > _MOST_FLOORS:
        floors = np.union1d(floors[:: -(-len(floors) // _MOST_FLOORS)], floors[-1:])
    costs, values = items.tables(floors)
    total, chosen = best_set(np.where(np.isfinite(values), costs, np.inf), limit)
    if not total <= items.room:
        least = "the bounds leave none" if np.isinf(total) else f"the cheapest take {total:g} of {items.room:g}"
        raise UserError(f"no {limit} different widths for all layers: {least}; allow more of them, or wider bounds")
    return tuple(floors[chosen].tolist())


def _spent(costs, values, price, chosen):
    at = np.argmin((values + price * costs)[:, chosen], axis=1)
    return float(costs[:, chosen][np.arange(len(costs)), at].sum())


def best_set(table, limit):
    """(total, indices): the at most `limit` columns whose row minima have the least sum. Rows convex along columns."""
    size = table.shape[1]
    ideal = np.argmin(table, axis=1)
    between, start, end = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for row, i in zip(table, ideal, strict=True):
        between[:i, i:] += np.minimum(row[:i, None], row[None, i:])
        start[i:] += row[i:]
        end[:i] += row[:i]
    between[np.tril_indices(size)] = np.inf
    best, trail, totals = start, [], [start + end]
    for _ in range(min(limit, size) - 1):
        paths = best[:, None] + between
        trail.append(np.argmin(paths, axis=0))
        best = paths[trail[-1], np.arange(size)]
        totals.append(best + end)
    used = int(np.argmin([total.min() for total in totals]))
    place = int(np.argmin(totals[used]))
    chosen = [place]
    for back in reversed(trail[:used]):
        place = int(back[place])
        chosen.append(place)
    return float(totals[used][chosen[0]]), np.array(chosen[::-1])


def _improve(items, sets):
    """The best Choice from the sets after moving one width at a time, and its widths."""

    def worth(widths):
        costs, values = items.tables(widths)
        relaxed = relax(list(costs), list(values), items.room)
        return np.inf if relaxed is None else relaxed.value

    scored = {widths: worth(widths) for widths in sorted(sets)}
    best = min(scored, key=scored.__getitem__)
    left = max(60, 12_800 // len(items.floor))
    stride = max(1, int(np.diff(items.grid).max()) // items.step)
    while stride and left > 0:
        moved = []
        for i in range(len(best)):
            for shift in (-stride, stride):
                new = tuple(sorted({*best[:i], best[i] + shift * items.step, *best[i + 1 :]}))
                if min(new) > 0 and new not in scored:
                    moved.append(new)
        left -= len(moved)
        scored.update({widths: worth(widths) for widths in moved})
        found = min(scored, key=scored.__getitem__)
        stride = stride if scored[found] < scored[best] else stride // 2
        best = found
    costs, values = items.tables(best)
    choice = choose_within(list(costs), list(values), items.room)
    return choice, np.array(best)
