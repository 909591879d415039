"""Dense linear assignment with its proof."""

from geowidth.ops.linear_assignment.operation import AssignmentResult, assignment

__all__ = ["AssignmentResult", "assignment"]
