"""The costly pieces of Gromov-Wasserstein in plain torch."""

import numpy as np

from geowidth.ops.gromov.pieces import PlainPieces
from geowidth.ops.linear_assignment.host import assignment_on_host
from geowidth.ops.linear_assignment.reference import assignment_reference


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
