"""The costly pieces of Gromov-Wasserstein, compiled for the CPU and in plain torch."""

from dataclasses import dataclass

import numpy as np
import torch

from geowidth.ops.backend import native
from geowidth.ops.linear_assignment.operation import assignment_native, assignment_on_host, assignment_reference


@dataclass(frozen=True)
class Centred:
    """A symmetric cost matrix C taken apart: C_ij = d_ij + m_i + m_j + mean.

    d (n, n) and m (n,), float64, on the device of C: double-centred matrix and centred row means. mean: of C. spread:
    mean square of d. eccentricity: mean square of m. On a GPU also squares (n,), row sums of C_ij^2, and tidy, whether
    C has a zero diagonal and no negative entry; else None.
    """

    d: torch.Tensor
    m: torch.Tensor
    mean: float
    spread: float
    eccentricity: float
    squares: torch.Tensor | None = None
    tidy: bool | None = None


def centred(c, symmetric=True):
    """The Centred of a matrix by torch.

    One that is symmetric only up to rounding takes the means of rows and columns and the symmetric part of d, with
    which gromov_descent is right to second order in the asymmetry.
    """
    d = c.to(torch.float64, copy=True)
    means = d.mean(1) if symmetric else (d.mean(1) + d.mean(0)) / 2
    grand = means.mean().item()
    m = means - grand
    d.sub_(means[:, None]).sub_(m)
    spread = d.square().mean().item()
    return Centred(d if symmetric else (d + d.T) / 2, m, grand, spread, m.square().mean().item())


def address(tensor):
    """Where a tensor's numbers lie; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


class PlainPieces:
    """What torch does as well as anything."""

    def __init__(self, threads):
        self.threads = threads

    def centred(self, c1, c2):
        """Both matrices as Centred."""
        return centred(c1), centred(c2)

    def gradient(self, one, two, mixture):
        """-(one.d T two.d + one.m two.m') of a Mixture T: (n, n) float64."""
        product = (one.d @ mixture.apply(two.d)).mul_(-1 / len(one.d))
        return product.addr_(one.m, two.m, alpha=-1)


class NativeKernels(PlainPieces):
    """Compiled pieces; the same bits for any number of threads."""

    def __init__(self, threads):
        super().__init__(threads)
        self.module, _ = native()

    def assignment(self, cost, start, column_dual):
        return assignment_native(cost, start.clone(), None if column_dual is None else column_dual.clone())

    def gradient(self, one, two, mixture):
        """The same: by torch's product, or the own one where that is faster, with the same bits for any threads."""
        if not self.module.own_product_pays():
            return super().gradient(one, two, mixture)
        row, d, out = None, two.d, torch.empty_like(one.d)
        if not mixture.pure:
            d = mixture.apply(d)
        elif mixture.atoms[0] is not mixture.identity:
            row = mixture.atoms[0]
        self.module.scaled_product(
            one.d.data_ptr(), d.data_ptr(), address(row), one.m.data_ptr(), two.m.data_ptr(), -1 / len(d), len(d),
            out.data_ptr(), self.threads,
        )  # fmt: skip
        return out

    def square_difference(self, a, b, row=None, column=None):
        """sum_ik (a[i, k] - b[row[i], column[k]])^2 in float64; a, b (n, n) of one dtype, None = the identity."""
        double = a.dtype == torch.float64
        return self.module.matched_square_difference(
            a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), address(row), address(column), len(a), double,
            self.threads,
        )  # fmt: skip

    def swaps(self, d1, d2, cost, column, least, most):
        """Improve `column` (n,) by exchanges of two partners, in place, `cost` with it; returns how many were made."""
        return self.module.improve_by_swaps(
            d1.data_ptr(), d2.data_ptr(), cost.data_ptr(), column.data_ptr(), len(d1), least, most, self.threads
        )


class TorchKernels(PlainPieces):
    """The same in plain torch, on any device; the assignment is scipy's, or for costs on a GPU the CPU's best."""

    def assignment(self, cost, start, column_dual):
        if cost.device.type == "cpu":
            return assignment_reference(cost)
        return assignment_on_host(cost, start, column_dual)

    def square_difference(self, a, b, row=None, column=None):
        if row is not None:
            b = b[row]
        if column is not None:
            b = b[:, column]
        return (a.double() - b.double()).square().sum().item()

    def swaps(self, d1, d2, cost, column, least, most):
        n, made = len(d1), 0
        spread1 = d1.diagonal()[:, None] + d1.diagonal() - 2 * d1
        while made < most:
            matched, d2_matched = cost[:, column], d2[column][:, column]
            own, squares = matched.diagonal(), d2_matched.diagonal()
            slope = own[:, None] + own - matched - matched.T
            spread2 = squares[:, None] + squares - 2 * d2_matched
            gain = slope * (4 / n) + spread1 * spread2 * (2 / n**2)
            i, j = np.unravel_index(int(gain.argmax()), (n, n))
            if gain[i, j] <= least:
                break
            cost.addr_(d1[i] - d1[j], d2[column[i]] - d2[column[j]], alpha=1 / n)
            column[[i, j]] = column[[j, i]]
            made += 1
        return made
