"""The assignment of costs that lie on another device, solved on the CPU."""

from geowidth.ops.backend import native
from geowidth.ops.linear_assignment.native import assignment_native
from geowidth.ops.linear_assignment.reference import assignment_reference
from geowidth.ops.linear_assignment.result import AssignmentResult
from geowidth.ops.transfers import Transfer


def assignment_on_host(cost, start, column_dual):
    """The CPU's solution of costs that lie elsewhere: compiled, or scipy's where that was not built."""
    host = Transfer(cost).wait()
    solve = assignment_reference if native()[0] is None else assignment_native
    found = solve(host, start.to("cpu", copy=True), None if column_dual is None else column_dual.to("cpu", copy=True))
    column, row_dual, column_dual = (t.to(cost.device) for t in (found.column, found.row_dual, found.column_dual))
    return AssignmentResult(column, row_dual, column_dual, found.cost, found.bound)
