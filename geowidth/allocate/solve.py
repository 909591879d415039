"""The continuous optimum under a linear budget: exact, by a bracketed root search on the logarithm of the multiplier.

minimise sum_l c_l w_l^(-a_l)  subject to  sum_l p_l w_l = B,  m_l <= w_l <= M_l.

The problem is strictly convex where c_l > 0, and its optimality conditions give every width from one number nu:
w_l = clip((a_l c_l / (p_l nu))^(1/(1+a_l)), m_l, M_l). The spent budget falls continuously in log nu, so its root is
bracketed by "all at the cap" and "all at the floor" and found by Newton steps that fall back on bisection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from geowidth.allocate.surrogate import Surrogate
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, number, shown

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike

_ROUNDS = 200
_TIGHT = 4e-16


@dataclass(frozen=True)
class Solution:
    """A continuous optimum.

    widths: float64 (layers,). multiplier: nu, what one more unit of budget would save. at_floor, at_cap: layers whose
    bound is active. kkt_residual: the largest relative violation of the optimality conditions, the budget included.
    surrogate, uniform: the surrogate here and at one common width of the same cost; ratio = surrogate / uniform.
    """

    widths: np.ndarray
    multiplier: float
    at_floor: tuple[int, ...]
    at_cap: tuple[int, ...]
    kkt_residual: float
    surrogate: float
    uniform: float

    @property
    def ratio(self) -> float:
        """Predicted loss surrogate against uniform widths of the same cost; 1 when there is no work at all."""
        return self.surrogate / self.uniform if self.uniform else 1.0


def check_feasible(
    budget: float, cost: np.ndarray, floor: np.ndarray, cap: np.ndarray, unit: str = "parameters"
) -> None:
    """Refuse a budget that no widths between the floors and the caps can meet; names the feasible range."""
    smallest, largest = float(cost @ floor), float(cost @ cap)
    slack = 1e-12 * abs(budget)
    if not budget >= smallest - slack or not budget <= largest + slack:
        wrong = "below the floors" if budget < smallest else "above the caps"
        raise UserError(
            f"budget {budget:.15g} {unit} is {wrong}; feasible: {smallest:.15g} to {largest:.15g}: "
            f"change the budget, the floors or the caps"
        )


def solve_surrogate(surrogate: Surrogate, cost: ArrayLike, budget: float, floor: ArrayLike, cap: ArrayLike) -> Solution:
    """The widths that minimise `surrogate` at exactly this `budget`; see the module for the mathematics.

    cost: p_l > 0, what one unit of width costs; floor > 0 and cap (inf allowed), float64 (layers,). Layers without work
    stay at their floor; only when all others are at their caps do they share what is left, at one common width.
    """
    if not isinstance(surrogate, Surrogate):
        raise UserError(f"surrogate is {shown(surrogate)}; a Surrogate is needed")
    budget = number("budget", budget, "a finite number from 0 up", lambda v: 0 <= v < math.inf)
    cost = per_layer("cost", cost, surrogate.size, strict=True)
    floor = per_layer("floor", floor, surrogate.size, strict=True)
    cap = per_layer("cap", cap, surrogate.size, most=np.inf)
    if (floor > cap).any():
        raise UserError(f"the floor of layer {int(np.argmax(floor > cap))} is above its cap; lower the floor")
    check_feasible(budget, cost, floor, cap)
    # No layer can exceed what is left when all others sit at their floors; twice that makes every bound finite.
    reach = np.minimum(cap, 2.0 * (floor + max(budget - float(cost @ floor), 0.0) / cost))
    works = surrogate.coefficient > 0
    widths = floor.copy()
    left = budget - float(cost[~works] @ floor[~works])
    multiplier = 0.0
    if works.any() and left < float(cost[works] @ reach[works]):
        multiplier, widths[works] = _root(
            surrogate.coefficient[works], surrogate.exponent[works], cost[works], left, floor[works], reach[works]
        )
    else:
        widths[works] = reach[works]
        idle = ~works
        if idle.any():
            rest = budget - float(cost[works] @ widths[works])
            widths[idle] = fit_shape(np.ones(idle.sum()), cost[idle], rest, floor[idle], reach[idle])
    return _solution(surrogate, cost, budget, floor, cap, widths, multiplier)


def _root(coefficient, exponent, cost, budget, floor, cap):
    """(multiplier, widths) for positive coefficients and finite caps, with floor cost <= budget < cap cost."""
    top = np.log(exponent * coefficient / cost)
    power = 1.0 + exponent
    low = float((top - power * np.log(cap)).min())
    high = float((top - power * np.log(floor)).max())
    x = 0.5 * (low + high)
    for _ in range(_ROUNDS):
        free = np.exp((top - x) / power)
        widths = np.clip(free, floor, cap)
        spent = float(cost @ widths)
        if abs(spent - budget) <= _TIGHT * budget or high - low <= _TIGHT * max(abs(low), abs(high), 1.0):
            break
        low, high = (x, high) if spent > budget else (low, x)
        inside = (free > floor) & (free < cap)
        slope = float((cost * widths / power)[inside].sum())
        # Newton on log(spent), nearly linear in log nu; plateaus and wild steps fall back on bisection.
        step = np.log(spent / budget) * spent / slope if slope > 0 else np.inf
        x = x + step if low < x + step < high else 0.5 * (low + high)
    return float(np.exp(x)), widths


def _solution(surrogate, cost, budget, floor, cap, widths, multiplier):
    works = surrogate.coefficient > 0
    at_floor = widths <= floor
    at_cap = (widths >= cap) & ~at_floor
    slope = surrogate.coefficient * surrogate.exponent * np.power(widths, -surrogate.exponent - 1.0)
    residual = abs(float(cost @ widths) - budget) / max(abs(budget), 1e-300)
    if multiplier > 0:
        excess = slope / (cost * multiplier) - 1.0
        # At a floor the layer may want less than its price, at a cap more; in between it must match; idle layers never.
        violation = np.where(at_floor, np.maximum(excess, 0), np.where(at_cap, np.maximum(-excess, 0), abs(excess)))
        violation[(floor >= cap) | ~works] = 0.0
        residual = max(residual, float(violation.max()))
    flat = fit_shape(np.ones(surrogate.size), cost, budget, np.zeros(surrogate.size), np.full(surrogate.size, np.inf))
    return Solution(
        widths,
        multiplier,
        tuple(np.flatnonzero(at_floor).tolist()),
        tuple(np.flatnonzero(at_cap).tolist()),
        residual,
        float(surrogate.value(widths).sum()),
        float(surrogate.value(flat).sum()),
    )


def fit_shape(shape: np.ndarray, cost: np.ndarray, budget: float, floor: np.ndarray, cap: np.ndarray) -> np.ndarray:
    """Real widths clip(t * shape, floor, cap) that cost exactly `budget`; t is unique wherever some layer is free.

    The sum is piecewise linear in t, so the piece that holds the root is found among its breakpoints and solved
    exactly. shape: positive, float64 (layers,). Callers have checked that the budget is feasible.
    """
    if np.isfinite(cap).all() and budget >= float(cost @ cap):
        return np.array(cap, dtype=np.float64)
    points = np.concatenate([floor / shape, cap / shape])
    points = np.unique(points[np.isfinite(points)])

    def spent(t):
        return float(cost @ np.clip(t * shape, floor, cap))

    low, high = 0, len(points)
    while low < high:  # first breakpoint where at least the budget is spent
        middle = (low + high) // 2
        low, high = (low, middle) if spent(points[middle]) >= budget else (middle + 1, high)
    start = points[low - 1] if low else 0.0
    end = points[low] if low < len(points) else np.inf
    middle = 0.5 * (start + end) if np.isfinite(end) else 2.0 * start + 1.0
    inside = (middle * shape > floor) & (middle * shape < cap)
    fixed = float(cost @ np.where(inside, 0.0, np.clip(middle * shape, floor, cap)))
    slope = float(cost @ np.where(inside, shape, 0.0))
    t = min(max((budget - fixed) / slope, start), end) if slope > 0 else end
    return np.clip(t * shape, floor, cap)
