"""The costly pieces of Gromov-Wasserstein, compiled for the CPU."""

import torch

from geowidth.ops.backend import native
from geowidth.ops.gromov.pieces import PlainPieces
from geowidth.ops.linear_assignment.native import assignment_native


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
        self.module.scaled_product(one.d, d, row, one.m, two.m, -1 / len(d), out, self.threads)
        return out

    def square_difference(self, a, b, row=None, column=None):
        """sum_ik (a[i, k] - b[row[i], column[k]])^2 in float64; a, b (n, n) of one dtype, None = the identity."""
        return self.module.matched_square_difference(a, b, row, column, self.threads)

    def swaps(self, d1, d2, cost, column, least, most):
        """Improve `column` (n,) by exchanges of two partners, in place, `cost` with it; returns how many were made."""
        return self.module.improve_by_swaps(d1, d2, cost, column, least, most, self.threads)
