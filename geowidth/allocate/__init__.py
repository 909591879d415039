"""FFN width schedules under an exact budget.

allocate              a schedule by name, from a work profile or a shape over depth, in integer widths
Schedule              the result: widths, budget, settings; reads and writes schedule.json
solve_surrogate       the continuous optimum of the convex loss surrogate, with multiplier and KKT residual
round_widths          multiples of a quantum, never above the budget, with a proven gap
schedule_names        every schedule there is, installed plug-ins included
"""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.allocate.allocation import allocate as allocate
    from geowidth.allocate.arms import Arm as Arm
    from geowidth.allocate.problem import Problem as Problem
    from geowidth.allocate.rounding import Rounding as Rounding
    from geowidth.allocate.rounding import round_widths as round_widths
    from geowidth.allocate.schedules import Shape as Shape
    from geowidth.allocate.schedules import schedule_names as schedule_names
    from geowidth.allocate.solve import Solution as Solution
    from geowidth.allocate.solve import solve_surrogate as solve_surrogate
    from geowidth.allocate.surrogate import Surrogate as Surrogate
    from geowidth.allocate.surrogate import calibrated_surrogate as calibrated_surrogate
    from geowidth.artifacts.cost import LinearCost as LinearCost
    from geowidth.artifacts.cost import TableCost as TableCost
    from geowidth.artifacts.cost import linear_cost as linear_cost
    from geowidth.artifacts.schedule import Schedule as Schedule

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
