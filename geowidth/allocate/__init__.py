"""FFN width schedules under an exact budget.

allocate              a schedule by name, from a work profile or a shape over depth, in integer widths
Schedule              the result: widths, budget, settings; reads and writes schedule.json
solve_surrogate       the continuous optimum of the convex loss surrogate, with multiplier and KKT residual
round_widths          multiples of a quantum, never above the budget, with a proven gap
schedule_names        every schedule there is, installed plug-ins included
"""

from importlib import import_module

_HOME = {
    "allocate": "allocation",
    "Schedule": "schedule",
    "Surrogate": "surrogate",
    "calibrated_surrogate": "surrogate",
    "solve_surrogate": "solve",
    "Solution": "solve",
    "round_widths": "rounding",
    "Rounding": "rounding",
    "linear_cost": "cost",
    "LinearCost": "cost",
    "TableCost": "cost",
    "schedule_names": "schedules",
    "Shape": "schedules",
    "Problem": "problem",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"geowidth.allocate.{_HOME[name]}"), name)
    raise AttributeError(f"module 'geowidth.allocate' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
