"""From real widths to multiples of a quantum, under the exact budget.

Both things that are rounded are separable and convex: the loss surrogate, and the squared distance to a given shape.
With one price for every layer the greedy rule "the next step to the layer that gains most" is therefore exactly optimal
(Gross 1956; Ibaraki and Katoh, "Resource Allocation Problems", 1988). With different prices, or layers tied to one
common width, `knapsack` finds the optimum or says how far from it the answer can be at most.

A shape rounds to its nearest multiples wherever those cost what the budget says, as a cosine between symmetric ends
does; otherwise to the nearest multiples that do not exceed the budget and leave less than one more affordable step.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from geowidth.allocate.knapsack import choose_within, relax
from geowidth.errors import UserError


@dataclass(frozen=True)
class Rounding:
    """Integer widths (layers,) int64; their objective; a proven lower bound on it; exact = no better widths exist."""

    widths: np.ndarray
    objective: float
    lower: float
    exact: bool

    @property
    def gap(self):
        """How much better, relative to the objective, any other widths could be at most. 0 when exact."""
        return 0.0 if self.exact else max(0.0, (self.objective - self.lower) / max(abs(self.objective), 1e-300))


@dataclass(frozen=True)
class Closest:
    """Squared distance to `target` real widths, (layers,), less `reward` (layers,) for every unit of width spent."""

    target: np.ndarray
    reward: np.ndarray | float = 0.0

    @property
    def size(self):
        """How many layers there are."""
        return len(self.target)

    def value(self, widths):
        """(widths - target)^2 - reward * (widths - target)."""
        off = widths - self.target
        return off * (off - self.reward)

    def gain(self, widths, step):
        """Decrease of the value when a width grows by `step`; without reward negative beyond the target."""
        # Rounded: two layers equally far from a multiple tie in exact arithmetic, so they must here.
        return step * np.round(2.0 * (self.target - widths) - step + self.reward, 6)


@dataclass(frozen=True)
class Tied:
    """An objective over common widths: layers with the same label share one."""

    objective: object
    labels: np.ndarray

    def __post_init__(self):
        object.__setattr__(self, "labels", np.unique(self.labels, return_inverse=True)[1])

    @property
    def size(self):
        """How many common widths there are."""
        return int(self.labels.max()) + 1

    def value(self, widths):
        """The summed value of the layers of every label."""
        return np.bincount(self.labels, self.objective.value(widths[self.labels]), self.size)


def bounds_in_steps(floor, cap, step):
    """(lowest, highest) numbers of steps, int64 (layers,); refuses a step of which no multiple lies within bounds."""
    low = np.maximum(np.ceil(floor / step - 1e-12), 1).astype(np.int64)
    high = np.floor(np.minimum(cap, 2.0**52) / step + 1e-12).astype(np.int64)
    bad = np.flatnonzero(low > high)
    if bad.size:
        layer = int(bad[0])
        raise UserError(
            f"quantum {step} has no multiple between the floor {floor[layer]:g} and the cap {cap[layer]:g} of layer "
            f"{layer}; use a smaller quantum or wider bounds"
        )
    return low, high


def check_affordable(cost, budget, low, high, cap, step):
    """Refuse a budget below the floors, in multiples of the step, or above the caps; names the feasible range."""
    smallest = cost.total(low * step)
    largest = cost.total(np.floor(cap).astype(np.int64)) if np.isfinite(cap).all() else np.inf
    if smallest <= budget <= largest:
        return
    wrong = f"below the floors in multiples of {step}" if budget < smallest else "above the caps"
    upper = f"to {largest}" if np.isfinite(largest) else "or more"
    raise UserError(
        f"budget {budget} {cost.unit} is {wrong}; feasible: {smallest} {upper}; "
        f"change the budget, the floors, the caps or the quantum"
    )


def round_widths(objective, cost, budget, floor, cap, step, tied=None, near=None):
    """Multiples of `step` between floor and cap that minimise `objective` and cost at most `budget`.

    objective: a Surrogate or Closest; cost: a LinearCost; floor, cap: (layers,) real; tied: one label a layer, or None;
    near: real widths to start from, needed where prices differ. What is left of the budget is less than the cheapest
    step that any layer (or set of tied layers) could still take. Returns a Rounding.
    """
    low, high = bounds_in_steps(floor, cap, step)
    check_affordable(cost, budget, low, high, cap, step)
    price, room = cost.per_width * step, budget - cost.total(low * step)
    if tied is None and cost.equal:
        steps = int(low.sum()) + room // int(price[0])
        widths = round_equal_price(objective, step, low, high, int(min(steps, high.sum(dtype=np.float64)))) * step
        value = float(objective.value(widths.astype(np.float64)).sum())
        return Rounding(widths, value, value, True)
    near = objective.target if near is None else near
    objective = Tied(paying(objective, cost, step), np.arange(len(low)) if tied is None else tied)
    return _round_unequal(objective, price, room, low, high, step, near)


def paying(objective, cost, step):
    """The objective with a reward for spending where it has none: an affordable step near the target always pays."""
    if not isinstance(objective, Closest):
        return objective
    return Closest(objective.target, 3.0 * step * cost.per_width / cost.per_width.min())


def tied_bounds(objective, low, high):
    """Bounds of the common widths of a Tied objective, from those of its layers."""
    bottom, top = np.zeros(objective.size, np.int64), np.full(objective.size, np.iinfo(np.int64).max)
    np.maximum.at(bottom, objective.labels, low)
    np.minimum.at(top, objective.labels, high)
    if (bottom > top).any():
        raise UserError("layers tied to one width have floors above other tied layers' caps; widen the bounds")
    return bottom, top


def _round_unequal(objective, price, room, low, high, step, near):
    labels, groups = objective.labels, objective.size
    bottom, top = tied_bounds(objective, low, high)
    prices = np.bincount(labels, price, groups)
    room = room + float(price @ low) - float(prices @ bottom)
    if room < 0:
        raise UserError("the budget is below the floors of layers tied to one width; raise it or lower the floors")
    centre = np.clip(np.bincount(labels, near, groups) / np.bincount(labels, minlength=groups) / step, bottom, top)
    picked = _windowed(objective, prices, room, bottom, top, step, centre)
    counts = _fill(picked.widths, prices, room - float(prices @ (picked.widths - bottom)), top)
    value = float(objective.value(counts.astype(np.float64) * step).sum())
    exact = picked.exact and (counts == picked.widths).all()
    return Rounding(counts[labels] * step, value, min(picked.lower, value), bool(exact))


def _windowed(objective, prices, room, bottom, top, step, centre):
    """Knapsack over windows of steps around `centre`, widened until nothing outside them can be better."""
    reach = 8
    while True:
        first = np.maximum(bottom, np.floor(centre).astype(np.int64) - reach)
        last = np.minimum(top, np.ceil(centre).astype(np.int64) + reach)
        grid = first[:, None] + np.arange(int((last - first).max()) + 1)
        table = np.stack([objective.value(column * float(step)) for column in grid.T], axis=1)
        table[grid > last[:, None]] = np.inf
        costs = (grid - bottom[:, None]) * prices[:, None].astype(np.float64)
        choice = choose_within(list(costs), list(table), room)
        closed = (first == bottom).all() and (last == top).all()
        if choice is not None and (closed or _edges_lose(table, costs, grid, first, last, bottom, top, choice, room)):
            rows = np.arange(len(grid))
            return Rounding(grid[rows, choice.picks], choice.value, choice.lower, choice.exact)
        reach *= 4


def _edges_lose(table, costs, grid, first, last, bottom, top, choice, room):
    """Whether convexity proves that choices outside the windows are worse, by the reduced costs at the edges."""
    relaxed = relax(list(costs), list(table), room)
    reduced = table + relaxed.price * costs
    rows = np.arange(len(grid))
    least = reduced.min(axis=1)
    gap = choice.value - (float(least.sum()) - relaxed.price * room)
    low_edge = reduced[rows, 0] - least
    high_edge = reduced[rows, last - first] - least
    return bool(((first == bottom) | (low_edge > gap)).all() and ((last == top) | (high_edge > gap)).all())


def _fill(counts, prices, left, top):
    """Spend what is left on affordable steps, cheapest first: rarely is there one, as spending pays."""
    counts = counts.copy()
    while True:
        open_to = np.flatnonzero((counts < top) & (prices <= left))
        if not open_to.size:
            return counts
        layer = open_to[np.argmin(prices[open_to])]
        counts[layer] += 1
        left -= prices[layer]


def round_equal_price(objective, step, low, high, steps):
    """The best numbers of steps, int64 (layers,), when all steps cost the same and `steps` of them are affordable.

    low, high: bounds in steps. Exact for any separable convex objective; equal gains go to the earlier layer.
    """
    counts = _below_threshold(objective, step, low, high, steps)
    left = steps - int(counts.sum())
    gains = objective.gain(counts * float(step), step)
    heap = [(-gains[i], i) for i in range(len(counts)) if counts[i] < high[i]]
    heapq.heapify(heap)
    while left > 0 and heap:
        _, layer = heapq.heappop(heap)
        counts[layer] += 1
        left -= 1
        if counts[layer] < high[layer]:
            gain = objective.gain(counts * float(step), step)[layer]
            heapq.heappush(heap, (-gain, layer))
    return counts


def _below_threshold(objective, step, low, high, steps):
    """Counts after all steps whose gain exceeds some threshold: a part of the greedy order, and nearly all of it."""
    high = np.minimum(high, low + max(steps - int(low.sum()), 0))
    first = objective.gain(low * float(step), step)
    last = objective.gain(np.maximum(high - 1, low) * float(step), step)
    bottom, top = float(last.min()) - 1.0, float(first.max())
    best = low.copy()  # no gain exceeds `top`
    for _ in range(80):
        middle = 0.5 * (bottom + top)
        counts = _steps_above(objective, step, low, high, middle)
        if int(counts.sum()) > steps:
            bottom = middle
        else:
            top, best = middle, counts
            if steps - int(counts.sum()) <= len(low):
                break
    return best


def _steps_above(objective, step, low, high, threshold):
    """`low` plus the number of steps that gain more than `threshold`, layer by layer (vectorised binary search)."""
    start, end = low.copy(), high.copy()
    while (start < end).any():
        middle = (start + end) // 2
        open_to = start < end
        more = (objective.gain(middle * float(step), step) > threshold) & open_to
        start, end = np.where(more, middle + 1, start), np.where(open_to & ~more, middle, end)
    return start
