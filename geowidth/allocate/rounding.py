"""From real widths to multiples of a quantum, under the exact budget.

All that is rounded is separable and convex: the loss surrogate, measured curves, the squared distance to a given shape.
With one price for every layer the greedy rule "the next step to the layer that gains most" is therefore exactly optimal
(Gross 1956; Ibaraki and Katoh, "Resource Allocation Problems", 1988). With different prices, or layers tied to one
common width, `knapsack` finds the optimum or says how far from it the answer can be at most.

A shape rounds to its nearest multiples wherever those cost what the budget says, as a cosine between symmetric ends
does; otherwise to the nearest multiples that do not exceed the budget and leave less than one more affordable step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from geowidth.allocate.curves import Curves
from geowidth.allocate.knapsack import TOLERANCE, choose_within, summed
from geowidth.allocate.surrogate import Surrogate
from geowidth.allocate.thresholds import hand_out, split, widen
from geowidth.artifacts.cost import MOST_COUNTED, LinearCost
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, shown, whole

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

_FIRST_REACH = 8  # steps on each side of the relaxed optimum that are looked at first
_MOST_CHOICES = 2**16  # widths of all layers together that one knapsack takes in


@dataclass(frozen=True)
class Rounding:
    """Integer widths (layers,) int64; their objective; a proven lower bound on it; exact = no better widths exist."""

    widths: np.ndarray
    objective: float
    lower: float
    exact: bool

    @property
    def gap(self) -> float:
        """How much better, relative to the objective, any other widths could be at most. 0 when exact."""
        return 0.0 if self.exact else max(0.0, (self.objective - self.lower) / (abs(self.objective) or 1.0))


@dataclass(frozen=True)
class Closest:
    """Squared distance to `target` real widths, (layers,), less `reward` (layers,) for every unit of width spent."""

    target: np.ndarray
    reward: np.ndarray | float = 0.0

    @property
    def size(self) -> int:
        """How many layers there are."""
        return len(self.target)

    def value(self, widths: np.ndarray) -> np.ndarray:
        """(widths - target)^2 - reward * (widths - target)."""
        off = widths - self.target
        return off * (off - self.reward)

    def gain(self, widths: np.ndarray, step: int) -> np.ndarray:
        """Decrease of the value when a width grows by `step`; without reward negative beyond the target."""
        return step * (2.0 * (self.target - widths) - step + self.reward)

    def slack(self, step: int) -> float:
        """Gains no further apart than this are equal: two layers as far from a multiple tie in exact arithmetic."""
        return 1e-12 * step * max(float(np.abs(self.target).max()), step)


@dataclass(frozen=True)
class Tied:
    """An objective over common widths: layers with the same label share one."""

    objective: Surrogate | Closest | Curves
    labels: np.ndarray

    def __post_init__(self):
        object.__setattr__(self, "labels", np.unique(self.labels, return_inverse=True)[1])

    @property
    def size(self) -> int:
        """How many common widths there are."""
        return int(self.labels.max()) + 1

    def value(self, widths: np.ndarray) -> np.ndarray:
        """The summed value of the layers of every label."""
        return np.bincount(self.labels, self.objective.value(widths[self.labels]), self.size)

    def gain(self, widths: np.ndarray, step: int) -> np.ndarray:
        """The summed gain of the layers of every label."""
        return np.bincount(self.labels, self.objective.gain(widths[self.labels], step), self.size)


def check_bounds(floor: ArrayLike, cap: ArrayLike, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """(floor, cap) as float64 (layers,), from one number each or one a layer; a cap may be infinite."""
    return per_layer("floor", floor, layers), per_layer("cap", cap, layers, most=np.inf)


def labels_of(tied: ArrayLike | None, layers: int) -> np.ndarray | None:
    """Labels of tied layers as whole numbers from 0 up, int64 (layers,); None for none."""
    if tied is None:
        return None
    try:
        labels = np.asarray(tied)
        if labels.shape != (layers,) or labels.dtype.kind not in "iubU":
            raise ValueError
    except ValueError as error:
        raise UserError(
            f"tied is {shown(tied)}; allowed: one whole number or text a layer, {layers} of them"
        ) from error
    return np.unique(labels, return_inverse=True)[1]


def bounds_in_steps(floor: np.ndarray, cap: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(lowest, highest) numbers of steps, int64 (layers,); refuses a step of which no multiple lies within bounds."""
    low = np.maximum(np.ceil(_snapped(floor / step)), 1.0)
    high = np.floor(_snapped(np.minimum(cap, MOST_COUNTED) / step))
    bad = np.flatnonzero(~(low <= high))
    if bad.size:
        layer = int(bad[0])
        raise UserError(
            f"quantum {step} has no multiple between the floor {floor[layer]:g} and the cap {cap[layer]:g} of layer "
            f"{layer}; use a smaller quantum or wider bounds"
        )
    return low.astype(np.int64), high.astype(np.int64)


def _snapped(steps):
    """`steps` with whole numbers in place of what lies within a few units in the last place of one."""
    near = np.rint(steps)
    return np.where((np.abs(steps - near) <= 16 * np.spacing(steps)) & (near < 2.0**40), near, steps)


def check_affordable(
    cost: LinearCost, budget: float, low: np.ndarray, high: np.ndarray, cap: np.ndarray, step: int
) -> None:
    """Refuse a budget below the floors, in multiples of the step, or above the caps; names the feasible range."""
    smallest = cost.total(low, step)
    largest = cost.total([math.floor(c) for c in cap.tolist()]) if np.isfinite(cap).all() else math.inf
    if smallest <= budget <= largest:
        return
    wrong = f"below the floors in multiples of {step}" if budget < smallest else "above the caps"
    upper = f"to {largest}" if math.isfinite(largest) else "or more"
    raise UserError(
        f"budget {budget} {cost.unit} is {wrong}; feasible: {smallest} {upper}; "
        f"change the budget, the floors, the caps or the quantum"
    )


def round_widths(
    objective: Surrogate | Closest | Curves,
    cost: LinearCost,
    budget: int,
    floor: ArrayLike,
    cap: ArrayLike,
    step: int,
    tied: ArrayLike | None = None,
) -> Rounding:
    """Multiples of `step` between floor and cap that minimise `objective` and cost at most `budget`.

    objective: a Surrogate, Closest or Curves; cost: a LinearCost; budget: a whole number up to 2^53; floor, cap:
    (layers,) real; tied: one label a layer, or None. What is left of the budget is less than the cheapest step that any
    layer (or set of tied layers) could still take. Where prices differ a Closest is rewarded for spending, see
    `paying`; the Rounding's objective is then that one's.

    Returns a Rounding. `exact` and `lower` hold up to 1e-12 of the objective, or of the distances that Closest squares.
    """
    budget, step = whole("budget", budget, 0, MOST_COUNTED), whole("quantum", step, 1, MOST_COUNTED)
    if not isinstance(objective, (Surrogate, Closest, Curves)) or not isinstance(cost, LinearCost):
        raise UserError(f"objective is {shown(objective)}, cost {shown(cost)}; a Surrogate and a LinearCost are needed")
    floor, cap, tied = *check_bounds(floor, cap, objective.size), labels_of(tied, objective.size)
    per_layer("per_width of the cost", cost.per_width, objective.size)
    low, high = bounds_in_steps(floor, cap, step)
    check_affordable(cost, budget, low, high, cap, step)
    price, room = cost.per_width * step, budget - cost.total(low, step)
    if tied is None and cost.equal:
        steps = int(low.sum()) + room // int(price[0])
        widths = round_equal_price(objective, step, low, high, steps) * step
        value = summed(objective.value(widths.astype(np.float64)))
        return Rounding(widths, value, value, True)
    objective = Tied(paying(objective, cost, step), np.arange(len(low)) if tied is None else tied)
    return _round_unequal(objective, price, room, low, high, step)


def paying(objective: Surrogate | Closest | Curves, cost: LinearCost, step: int) -> Surrogate | Closest | Curves:
    """The objective with a reward for spending where it has none: an affordable step near the target always pays."""
    if not isinstance(objective, Closest):
        return objective
    return Closest(objective.target, 3.0 * step * cost.per_width / cost.per_width.min())


def tied_bounds(objective: Tied, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the common widths of a Tied objective, from those of its layers."""
    bottom, top = np.zeros(objective.size, np.int64), np.full(objective.size, np.iinfo(np.int64).max)
    np.maximum.at(bottom, objective.labels, low)
    np.minimum.at(top, objective.labels, high)
    if (bottom > top).any():
        raise UserError("layers tied to one width have floors above other tied layers' caps; widen the bounds")
    return bottom, top


def _round_unequal(objective, price, room, low, high, step):
    labels, groups = objective.labels, objective.size
    bottom, top = tied_bounds(objective, low, high)
    prices = np.zeros(groups, np.int64)
    np.add.at(prices, labels, price)
    room -= sum(int(p) * int(b - w) for p, b, w in zip(price, bottom[labels], low, strict=True))
    if room < 0:
        raise UserError("the budget is below the floors of layers tied to one width; raise it or lower the floors")
    top = np.minimum(top, bottom + room // prices)
    picked = _windowed(objective, prices, room, bottom, top, step)
    counts = _fill(picked.widths, prices, room - int(prices @ (picked.widths - bottom)), top)
    value = summed(objective.value(counts.astype(np.float64) * step))
    exact = picked.exact and value <= picked.objective
    return Rounding(counts[labels] * step, value, min(picked.lower, value), exact)


def relaxed_counts(
    objective: Tied, prices: np.ndarray, room: int, bottom: np.ndarray, top: np.ndarray, step: int
) -> tuple[np.ndarray, float, float]:
    """(counts, price, lower): what minimises objective + price * cost, the price at which that fits, and the bound.

    Of all steps worth more than the price all are taken, so by convexity no widths within the budget have a summed
    objective below `lower` (Lagrange duality). counts: int64 (items,), up to `top`.
    """

    def fits(counts):
        return float(prices @ (counts - bottom).astype(np.float64)) <= room

    def worth(counts):
        return objective.gain(counts * float(step), step) / prices

    counts, _, price = split(worth, bottom, top, fits, least=0.0)
    spent = float(prices @ (counts - bottom).astype(np.float64))
    return counts, price, summed(objective.value(counts * float(step))) - price * (room - spent)


def _windowed(objective, prices, room, bottom, top, step):
    """Knapsack over windows of steps around the relaxed optimum, widened until nothing outside them can be better.

    Where that would take more than _MOST_CHOICES, the best found comes with the relaxation's bound.
    """
    centre, price, lower = relaxed_counts(objective, prices, room, bottom, top, step)
    reach, rows = max(1, min(_FIRST_REACH, _MOST_CHOICES // (2 * len(prices)))), np.arange(len(prices))
    while True:
        first, last = np.maximum(bottom, centre - reach), np.minimum(top, centre + reach)
        grid, table = _table(objective, first, last, step)
        costs = (grid - bottom[:, None]) * prices[:, None].astype(np.float64)
        choice = choose_within(list(costs), list(table), room)
        found = Rounding(grid[rows, choice.picks], choice.value, min(lower, choice.value), False)
        gap = choice.value - lower
        reduced = table + price * costs
        reduced -= reduced[rows, centre - first][:, None]
        low_open, high_open = (
            (first > bottom) & (reduced[:, 0] <= gap),
            (last < top) & (reduced[rows, last - first] <= gap),
        )
        open_to = low_open | high_open
        if gap <= TOLERANCE * np.abs(table[rows, choice.picks]).sum() or (choice.exact and not open_to.any()):
            return replace(found, lower=choice.value, exact=True)
        reach *= 4
        if not open_to.any() or reach * 2 * len(prices) > _MOST_CHOICES:
            return found


def _table(objective, first, last, step):
    """(counts, their values): (items, choices) int64 and float64, the values beyond `last` infinite."""
    grid = first[:, None] + np.arange(int((last - first).max()) + 1)
    table = np.stack([objective.value(column * float(step)) for column in grid.T], axis=1)
    table[grid > last[:, None]] = np.inf
    return grid, table


def _fill(counts, prices, left, top):
    """Spend what is left on affordable steps, cheapest first: rarely is there one, as spending pays."""
    counts = counts.copy()
    for item in np.argsort(prices, kind="stable"):
        steps = min(int(top[item] - counts[item]), left // int(prices[item]))
        counts[item] += steps
        left -= steps * int(prices[item])
    return counts


def round_equal_price(
    objective: Surrogate | Closest | Curves, step: int, low: np.ndarray, high: np.ndarray, steps: int
) -> np.ndarray:
    """The best numbers of steps, int64 (layers,), when all steps cost the same and `steps` of them are affordable.

    low, high: bounds in steps. Exact for any separable convex objective; equal gains go to the earlier layer.
    """
    high = np.minimum(high, low + max(steps - int(low.sum()), 0))

    def gain(counts):
        return objective.gain(counts * float(step), step)

    sure, possible, threshold = split(gain, low, high, lambda counts: _total(counts) <= steps)
    if sure is possible:
        return sure
    slack = objective.slack(step)
    if slack:
        sure, possible = widen(gain, low, high, sure, possible, threshold, slack)
    return hand_out(sure, possible, steps - int(sure.sum()))


def _total(counts):
    """The sum of `counts`, exact up to 2^62 and infinite beyond."""
    return int(counts.sum()) if counts.sum(dtype=np.float64) < 2.0**62 else math.inf
