"""Dense linear assignment: the permutation of least cost, with dual variables that prove it.

Source: Jonker, Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
Computing 38 (1987). The solver here starts from a permutation (the identity unless told otherwise) and first asks
whether that one is optimal, which takes a few passes over the matrix where it is.
"""

import sys
from dataclasses import dataclass

import numpy as np
import torch

from geowidth import inputs
from geowidth.errors import UserError
from geowidth.inputs import numbers_on, refuse_entry
from geowidth.ops import backend as backends
from geowidth.ops import cuda_support
from geowidth.ops.backend import Backend, Operation, native, why_not_native
from geowidth.ops.transfers import Transfer


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


def assignment(cost, *, start=None, column_dual=None, backend=None):
    """Minimise sum_i cost[i, column[i]] over permutations `column`.

    cost: (n, n) torch or numpy, on the CPU or a GPU, computed in float64. start: (n,) permutation to start from
    (default: the identity). column_dual: (n,) guess of the column duals, for example those of a similar problem. Both
    change the time, and among equally cheap permutations the one returned; whatever they hold, never the cost. On a GPU
    the start is proved optimal there where a few passes can do it; otherwise the costs are solved on the CPU. Returns
    an AssignmentResult.
    Raises UserError for entries that are not finite or whose sums may not be, matrices that are not square, and starts
    that are no permutation.
    """
    cost = inputs.tensor("cost", cost).detach().to(torch.float64)
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise UserError(f"cost has shape {tuple(cost.shape)}; a square matrix (n, n) is needed")
    n = len(cost)
    refuse_entry("cost", cost, ~torch.isfinite(cost), "all entries must be finite")
    # Duals are sums of up to 2 n differences of costs, and the solver forms larger ones on the way.
    most = sys.float_info.max / (64 * (n + 4))
    refuse_entry("cost", cost, cost.abs() > most, f"sums of {n} costs must be finite too: up to {most:.3g} is allowed")
    chosen = ASSIGNMENT.choose(cost.device.type, backend)
    return chosen.run(cost, _permutation(start, n, cost.device), _duals(column_dual, n, cost.device))


def _permutation(start, n, device):
    if start is None:
        return torch.arange(n, device=device)
    start = numbers_on("start", start, device)
    every = torch.arange(n, dtype=torch.float64, device=device)
    if start.shape != (n,) or not torch.equal(start.sort().values, every):
        raise UserError(f"start is not a permutation of 0..{n - 1}")
    return start.long()


def _duals(column_dual, n, device):
    if column_dual is None:
        return None
    column_dual = numbers_on("column_dual", column_dual, device)
    if column_dual.shape != (n,) or not torch.isfinite(column_dual).all():
        raise UserError(f"column_dual must hold {n} finite numbers")
    return column_dual


def _result(cost, column, row_dual, column_dual):
    total = cost[torch.arange(len(cost), device=cost.device), column].sum().item()
    return AssignmentResult(column, row_dual, column_dual, total, (row_dual.sum() + column_dual.sum()).item())


def assignment_native(cost, start, column_dual):
    """The compiled solver. cost: (n, n) float64 on the CPU; start is overwritten."""
    cost = cost if cost.stride(1) == 1 else cost.contiguous()
    n = len(cost)
    v = torch.zeros(n, dtype=torch.float64) if column_dual is None else column_dual
    u = torch.empty(n, dtype=torch.float64)
    native()[0].solve_assignment(
        cost.data_ptr(), n, cost.stride(0), column_dual is not None, start.data_ptr(), v.data_ptr(), u.data_ptr()
    )
    return _result(cost, start, u, v)


def assignment_cuda(cost, start, column_dual):
    """`start` if the GPU proves it optimal, else the CPU's solution. cost: (n, n) float64, on the device as all is."""
    return certificate(cost, start) or assignment_on_host(cost, start, column_dual)


def certificate(cost, column):
    """An AssignmentResult of permutation `column` if sweeps over its duals on the GPU prove it optimal, else None.

    Of 91 stationary identities of two language models' layers the first sweep proves 4, twelve prove 89. A float64
    product of the same size takes as long as n / 64 sweeps, by operations and bytes on an H200.
    """
    n, module = len(cost), backends.cuda()[0]
    if n == 0:
        return None
    cost = cost if cost.stride(1) == 1 else cost.contiguous()
    column = column.contiguous()
    row_dual, column_dual, scratch = cost.new_empty(n), cost.new_empty(2, n), cost.new_empty(2 * n)
    lowered, out = cost.new_empty(module.most_sweeps, dtype=torch.int32), cost.new_empty(3)
    with cuda_support.on_device(cost):
        module.assignment_certificate(
            cost.data_ptr(), cost.stride(0), n, column.data_ptr(), row_dual.data_ptr(), column_dual.data_ptr(),
            scratch.data_ptr(), lowered.data_ptr(), out.data_ptr(), cuda_support.stream(cost),
        )  # fmt: skip
    sweep, total, bound = out.tolist()
    return None if sweep < 0 else AssignmentResult(column, row_dual, column_dual[int(sweep) % 2], total, bound)


def assignment_on_host(cost, start, column_dual):
    """The CPU's solution of costs that lie elsewhere: compiled, or scipy's where that was not built."""
    host = Transfer(cost).wait()
    solve = assignment_reference if native()[0] is None else assignment_native
    found = solve(host, start.to("cpu", copy=True), None if column_dual is None else column_dual.to("cpu", copy=True))
    tensors = (t.to(cost.device) for t in (found.column, found.row_dual, found.column_dual))
    return AssignmentResult(*tensors, found.cost, found.bound)


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
    return _result(cost, *(torch.from_numpy(a).to(cost.device) for a in (column, u, v)))


ASSIGNMENT = Operation(
    "assignment",
    [
        Backend("native", ("cpu",), assignment_native, why_not_native),
        Backend("cuda", ("cuda",), assignment_cuda, cuda_support.why_not),
        Backend("torch", ("cpu", "cuda"), assignment_reference),
    ],
)
