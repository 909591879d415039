"""Dense linear assignment: the permutation of least cost, with dual variables that prove it.

Source: Jonker, Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
Computing 38 (1987). The solver here starts from a permutation (the identity unless told otherwise) and first asks
whether that one is optimal, which takes a few passes over the matrix where it is.
"""

import sys

import torch

from geowidth import inputs
from geowidth.errors import UserError
from geowidth.inputs import ArrayLike, numbers_on, refuse_entry
from geowidth.ops import cuda_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.linear_assignment.cuda import assignment_cuda
from geowidth.ops.linear_assignment.native import assignment_native
from geowidth.ops.linear_assignment.reference import assignment_reference
from geowidth.ops.linear_assignment.result import AssignmentResult


def assignment(
    cost: ArrayLike, *, start: ArrayLike | None = None, column_dual: ArrayLike | None = None, backend: str | None = None
) -> AssignmentResult:
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


ASSIGNMENT = Operation(
    "assignment",
    [
        Backend("native", ("cpu",), assignment_native, why_not_native),
        Backend("cuda", ("cuda",), assignment_cuda, cuda_support.why_not),
        Backend("torch", ("cpu", "cuda"), assignment_reference),
    ],
    assignment_reference,
)
