"""What every backend of the assignment returns."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AssignmentResult:
    """An optimal assignment of n rows to n columns.

    column: (n,) int64, the column of each row. row_dual u, column_dual v: (n,) float64 with u_i + v_j <= cost_ij to one
    rounding, so `bound` = sum(u) + sum(v) is a lower bound of every assignment's cost. cost: that of `column`.
    Tensors lie on the device of the costs.
    """

    column: torch.Tensor
    row_dual: torch.Tensor
    column_dual: torch.Tensor
    cost: float
    bound: float


def result_of(cost, column, row_dual, column_dual):
    """The AssignmentResult of a permutation (n,) and its duals (n,), on the device of cost (n, n)."""
    total = cost[torch.arange(len(cost), device=cost.device), column].sum().item()
    return AssignmentResult(column, row_dual, column_dual, total, (row_dual.sum() + column_dual.sum()).item())
