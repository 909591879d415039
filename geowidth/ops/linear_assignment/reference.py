"""The assignment by scipy, in float64: what the op is tested against, and its backend "torch"."""

import numpy as np
import torch

from geowidth.ops.linear_assignment.result import result_of


def assignment_reference(cost, start=None, column_dual=None):
    """scipy's solver; the duals are shortest distances over the optimal permutation, by Bellman-Ford sweeps."""
    from scipy.optimize import linear_sum_assignment

    matrix = cost.cpu().numpy()
    n = len(matrix)
    column = linear_sum_assignment(matrix)[1].astype(np.int64)
    own = matrix[np.arange(n), column]
    slack = 4 * np.finfo(np.float64).eps * np.abs(own).max(initial=0)
    v = np.zeros(n)
    for _ in range(n):
        reach = (matrix - (own - v[column])[:, None]).min(0, initial=np.inf)
        if not (reach < v - slack).any():
            break
        v = np.minimum(v, reach)
    u = (matrix - v).min(1, initial=np.inf)
    return result_of(cost, *(torch.from_numpy(a).to(cost.device) for a in (column, u, v)))
