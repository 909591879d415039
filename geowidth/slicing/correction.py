"""What the neurons that stay can take over from those that go: least squares in closed form.

With h the hidden vector, S the neurons kept and R those removed, the FFN loses W_R h_R. The correction adds to W_S the
matrix C = W_R A, A = argmin sum |h_R - A h_S|^2 + ridge |A|^2 over calibration tokens: C solves
C (G + ridge I) = W_R H_R^T H_S with the Gram matrix G = H_S^T H_S. With a bias on the output, means are taken off first
and what they leave, W_R mean(h_R) - C mean(h_S), is added to the bias; without C that is the compensation of FLAP
(An et al., arXiv 2312.11983, baseline bias compensation).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

RIDGES = (1.0, 0.3, 0.1, 0.03)  # shares of the mean diagonal of G among which held-out tokens choose
ROUGH = 1e-3  # from this ridge on, single precision tells which is best
STRIPE = 256  # columns of a Gram matrix that are made at once
KEPT_OUT = 5  # every how many windows one is kept out for that choice


@dataclass(frozen=True)
class LayerReport:
    """What was done to a layer.

    layer, width, kept    its number, its neurons before and after
    ridge                 share of the mean diagonal of G; None where nothing was corrected
    unexplained           share of the removed neurons' output, in squares on kept-out tokens, that is lost for good;
                          None where no tokens were kept out
    """

    layer: int
    width: int
    kept: int
    ridge: float | None = None
    unexplained: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "LayerReport":
        return cls(**value)


@dataclass(frozen=True)
class Correction:
    """columns: what is added to W_S, (d, kept), None for nothing. bias: what is added to the output's bias, (d,), or
    None. ridge, unexplained: see LayerReport."""

    columns: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    ridge: float | None = None
    unexplained: float | None = None


def kept_out_windows(windows: int) -> int:
    """How many of the calibration windows, the last ones, are kept out to choose the ridge."""
    return max(1, windows // KEPT_OUT)


@torch.no_grad()
def corrected(
    hidden: torch.Tensor,
    columns: torch.Tensor,
    kept: torch.Tensor,
    ridges: Sequence[float],
    kept_out: int,
    bias: bool = False,
) -> Correction:
    """The Correction of a layer.

    hidden: h of the calibration tokens (tokens, width). columns: the down-projection (d, width). kept: int64 indices,
    ascending. ridges: shares of the mean diagonal of G; one is taken as it is, of several that of least error on the
    last `kept_out` tokens, which are then used as well; no correction at all is one of the choices. None: only the
    bias. bias: see above. Products are taken in float32 or wider, the solution is found in float64.
    """
    with torch.autocast(hidden.device.type, enabled=False):  # under it the products would be taken in 16 bits
        return _corrected(hidden, columns, kept, ridges, kept_out, bias)


def _corrected(hidden, columns, kept, ridges, kept_out, bias):
    wide = torch.promote_types(hidden.dtype, torch.float32)
    removed = torch.ones(hidden.shape[1], dtype=torch.bool, device=hidden.device)
    removed[kept] = False
    stay, go = hidden[:, kept].to(wide), hidden[:, removed].to(wide)
    lost = go @ columns[:, removed].to(wide).T  # what the FFN's output loses, (tokens, d)
    problem = _Problem(stay, go, lost, columns[:, removed].to(wide), len(hidden) - kept_out, bias)
    if not ridges or not stay.shape[1]:
        return Correction(bias=problem.intercept(None, len(hidden)) if bias else None)
    if len(ridges) == 1:
        found = problem.solve(ridges[0], len(hidden))
        return Correction(found, problem.intercept(found, len(hidden)) if bias else None, ridges[0])
    return problem.chosen(ridges)


class _Problem:
    """Least squares of one layer: over its first `fitted` tokens to choose a ridge, over all of them once chosen."""

    def __init__(self, stay, go, lost, gone_columns, fitted, bias):
        self.stay, self.lost, self.fitted, self.bias = stay, lost, fitted, bias
        # Few removed neurons: solve for them; more than the stream is wide: for what they add to it.
        self.back: torch.Tensor | None
        self.goal, self.back = (go, gone_columns) if go.shape[1] < lost.shape[1] else (lost, None)
        self.normal: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def solve(self, ridge, tokens, dtype=torch.float64):
        """C (d, kept) over the first `tokens` tokens; None where G is 0."""
        gram, right = self._normal(tokens)
        mean = float(gram.diagonal().mean(dtype=torch.float64))
        if not mean > 0:
            return None
        damped = gram.to(dtype, copy=True)
        damped.diagonal().add_(ridge * mean)
        found = _solved(damped, right.to(dtype)).T
        return found if self.back is None else self.back.to(dtype) @ found

    def intercept(self, columns, tokens):
        """What goes into the bias, (d,) float64: the mean of what C leaves."""
        left = self.lost[:tokens].mean(0, dtype=torch.float64)
        return left if columns is None else left - columns.double() @ self.stay[:tokens].mean(0, dtype=torch.float64)

    def chosen(self, ridges):
        """The Correction of the ridge that leaves least on the kept-out tokens. Errors fall, then rise, along the
        ridges from large to small, so the first rise ends the search."""
        best, best_error = None, self._error(None)
        none = best_error
        for ridge in sorted(ridges, reverse=True):
            dtype = self.stay.dtype if ridge >= ROUGH else torch.float64
            error = self._error(self.solve(ridge, self.fitted, dtype))
            if not error < best_error:
                break
            best, best_error = ridge, error
        tokens = len(self.stay)
        columns = None if best is None else self.solve(best, tokens)
        left = best_error / none if none > 0 else 0.0
        bias = self.intercept(columns, tokens) if self.bias else None
        return Correction(columns, bias, best, left)

    def _error(self, columns):
        """Squared error of the FFN's output on the kept-out tokens."""
        held, lost = self.stay[self.fitted :], self.lost[self.fitted :]
        left = lost if columns is None else lost - held @ columns.to(held.dtype).T
        if self.bias:
            left = left - self.intercept(columns, self.fitted).to(left.dtype)
        return float(torch.linalg.vector_norm(left, dtype=torch.float64) ** 2)

    def _normal(self, tokens):
        """(G, H_S^T goal) over the first tokens, of G the lower triangle; sums over more tokens go on from fewer."""
        if tokens not in self.normal:
            stay, goal = self.stay, self.goal
            if self.bias:
                stay, goal = stay - stay[:tokens].mean(0), goal - goal[:tokens].mean(0)
            begin = 0 if self.bias or self.fitted not in self.normal else self.fitted
            gram, right = _lower_gram(stay[begin:tokens]), stay[begin:tokens].T @ goal[begin:tokens]
            if begin:
                gram, right = gram.add_(self.normal[begin][0]), right.add_(self.normal[begin][1])
            self.normal[tokens] = gram, right
        return self.normal[tokens]


def _lower_gram(rows):
    """rows^T rows, of which what stands above the diagonal, but for a part, is left out: nobody reads it."""
    found = rows.new_zeros(rows.shape[1], rows.shape[1])
    for begin in range(0, rows.shape[1], STRIPE):
        end = begin + STRIPE
        torch.mm(rows[:, begin:end].T, rows[:, :end], out=found[begin:end, :end])
    return found


def _solved(matrix, right):
    """matrix^-1 right for a symmetric positive matrix, of which the lower triangle counts; where rounding left it
    singular, the solution of least norm."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return torch.cholesky_solve(right, factor)
    values, vectors = torch.linalg.eigh(matrix)
    least = values[-1] * len(matrix) * torch.finfo(matrix.dtype).eps
    inverse = torch.where(values > least, 1 / values, 0.0)
    return vectors @ (inverse[:, None] * (vectors.T @ right))
