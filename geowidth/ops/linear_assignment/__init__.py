"""Dense linear assignment with its proof."""

from geowidth.ops.linear_assignment.operation import assignment
from geowidth.ops.linear_assignment.result import AssignmentResult

__all__ = ["AssignmentResult", "assignment"]
