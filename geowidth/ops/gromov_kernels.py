"""The pieces of Gromov-Wasserstein that are not matrix products, compiled and in plain torch."""

import numpy as np
import torch

from geowidth.ops.assignment import assignment_native, assignment_reference
from geowidth.ops.backend import native


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


class NativeKernels:
    """Compiled pieces; the same bits for any number of threads."""

    def __init__(self, threads):
        self.threads = threads
        self.module, _ = native()

    def assignment(self, cost, start, column_dual):
        return assignment_native(cost, start.clone(), None if column_dual is None else column_dual.clone())

    def square_difference(self, a, b, row=None, column=None):
        """sum_ik (a[i, k] - b[row[i], column[k]])^2 in float64; a, b (n, n) of one dtype, None = the identity."""
        double = a.dtype == torch.float64
        return self.module.matched_square_difference(
            a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), _address(row), _address(column), len(a), double,
            self.threads,
        )  # fmt: skip

    def swaps(self, d1, d2, cost, column, least, most):
        """Improve `column` (n,) by exchanges of two partners, in place, `cost` with it; returns how many were made."""
        return self.module.improve_by_swaps(
            d1.data_ptr(), d2.data_ptr(), cost.data_ptr(), column.data_ptr(), len(d1), least, most, self.threads
        )


class TorchKernels:
    """The same in plain torch (and scipy's assignment)."""

    def __init__(self, threads):
        self.threads = threads

    def assignment(self, cost, start, column_dual):
        return assignment_reference(cost)

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
