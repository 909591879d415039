"""The compiled assignment solver for the CPU."""

import torch

from geowidth.ops.backend import native
from geowidth.ops.linear_assignment.result import result_of


def assignment_native(cost, start, column_dual):
    """The compiled solver. cost: (n, n) float64 on the CPU; start is overwritten."""
    cost = cost if cost.stride(1) == 1 else cost.contiguous()
    n = len(cost)
    v = torch.zeros(n, dtype=torch.float64) if column_dual is None else column_dual
    u = torch.empty(n, dtype=torch.float64)
    native()[0].solve_assignment(cost, column_dual is not None, start, v, u)
    return result_of(cost, start, u, v)
