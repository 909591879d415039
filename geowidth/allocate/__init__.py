"""FFN width schedules under an exact budget.

allocate              a schedule by name, from a work profile or a shape over depth, in integer widths
Schedule              the result: widths, budget, settings; reads and writes schedule.json
solve_surrogate       the continuous optimum of the convex loss surrogate, with multiplier and KKT residual
round_widths          multiples of a quantum, never above the budget, with a proven gap
schedule_names        every schedule there is, installed plug-ins included
"""

from geowidth import lazy

_HOMES = {
    "Arm": "geowidth.allocate.arms",
    "allocate": "geowidth.allocate.allocation",
    "Schedule": "geowidth.artifacts.schedule",
    "Surrogate": "geowidth.allocate.surrogate",
    "calibrated_surrogate": "geowidth.allocate.surrogate",
    "solve_surrogate": "geowidth.allocate.solve",
    "Solution": "geowidth.allocate.solve",
    "round_widths": "geowidth.allocate.rounding",
    "Rounding": "geowidth.allocate.rounding",
    "linear_cost": "geowidth.artifacts.cost",
    "LinearCost": "geowidth.artifacts.cost",
    "TableCost": "geowidth.artifacts.cost",
    "schedule_names": "geowidth.allocate.schedules",
    "Shape": "geowidth.allocate.schedules",
    "Problem": "geowidth.allocate.problem",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
