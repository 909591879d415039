"""From real widths to multiples of a quantum, under the exact budget.

Both things that are rounded are separable and convex: the loss surrogate, and the squared distance to a given shape. With
one price for every layer the greedy rule "the next step to the layer that gains most" is therefore exactly optimal
(Gross 1956; Ibaraki and Katoh, "Resource Allocation Problems", 1988); with different prices `knapsack` finds the optimum
or says how far from it the answer can be at most.
"""

import heapq
from dataclasses import dataclass

import numpy as np

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
    """Squared distance to `target` real widths, (layers,): the objective of a schedule given by its shape."""

    target: np.ndarray

    @property
    def size(self):
        """How many layers there are."""
        return len(self.target)

    def value(self, widths):
        """(widths - target)^2."""
        return np.square(widths - self.target)

    def gain(self, widths, step):
        """Decrease of the squared distance when a width grows by `step`; negative beyond the target."""
        # Rounded to a millionth of a step: two layers equally far from a multiple tie in exact arithmetic, and must here.
        return step * np.round(2.0 * (self.target - widths) - step, 6)


def bounds_in_steps(floor, cap, step, what="quantum"):
    """(lowest, highest) numbers of steps, int64 (layers,); refuses a step of which no multiple lies within bounds."""
    low = np.maximum(np.ceil(floor / step - 1e-12), 1).astype(np.int64)
    high = np.where(np.isfinite(cap), np.floor(np.minimum(cap, 2.0**62) / step + 1e-12), 2.0**62 // step).astype(
        np.int64
    )
    bad = np.flatnonzero(low > high)
    if bad.size:
        layer = int(bad[0])
        raise UserError(
            f"{what} {step} has no multiple between the floor {floor[layer]:g} and the cap {cap[layer]:g} of layer "
            f"{layer}; use a smaller {what} or wider bounds"
        )
    return low, high


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
    first, last = objective.gain(low * float(step), step), objective.gain(np.maximum(high - 1, low) * float(step), step)
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
    """For every layer, `low` plus the number of its steps that gain more than `threshold` (vectorised binary search)."""
    start, end = low.copy(), high.copy()
    while (start < end).any():
        middle = (start + end) // 2
        more = (objective.gain(middle * float(step), step) > threshold) & (start < end)
        start, end = np.where(more, middle + 1, start), np.where(more, end, np.where(start < end, middle, end))
    return start


def round_widths(objective, cost, budget, floor, cap, step):
    """Multiples of `step` between floor and cap that minimise `objective` and cost at most `budget`.

    cost: LinearCost; floor, cap: (layers,) real. What is left of the budget is less than the cheapest step any layer could
    still take. Returns a Rounding.
    """
    low, high = bounds_in_steps(floor, cap, step)
    check_affordable(cost, budget, low, high, cap, step)
    steps = int(low.sum()) + (budget - cost.total(low * step)) // int(cost.per_width[0] * step)
    counts = round_equal_price(objective, step, low, high, int(min(steps, high.sum(dtype=np.float64))))
    widths = counts * step
    value = float(objective.value(widths.astype(np.float64)).sum())
    return Rounding(widths, value, value, True)


def check_affordable(cost, budget, low, high, cap, step):
    """Refuse a budget below the floors, in multiples of the step, or above the caps; names the feasible range."""
    smallest = cost.total(low * step)
    largest = cost.total(np.floor(cap)) if np.isfinite(cap).all() else np.inf
    if smallest <= budget <= largest:
        return
    wrong = f"below the floors in multiples of {step}" if budget < smallest else "above the caps"
    upper = f"to {largest}" if np.isfinite(largest) else "or more"
    raise UserError(
        f"budget {budget} {cost.unit} is {wrong}; feasible: {smallest} {upper}; change the budget, the bounds or the quantum"
    )
