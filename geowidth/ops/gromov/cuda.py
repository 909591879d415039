"""The costly pieces of Gromov-Wasserstein on a GPU: products by torch, what stands around them by geowidth._cuda."""

import torch

from geowidth.ops import backend, cuda_support
from geowidth.ops.gromov.native import NativeKernels
from geowidth.ops.gromov.pieces import Centred
from geowidth.ops.gromov.torch import TorchKernels
from geowidth.ops.linear_assignment.cuda import assignment_cuda
from geowidth.ops.transfers import Transfer


class CudaKernels:
    """Kernels on the device of the costs. What the host must know comes back as few numbers at a time."""

    def __init__(self, threads):
        self.threads = threads
        self.module = backend.cuda()[0]

    def assignment(self, cost, start, column_dual):
        return assignment_cuda(cost, start, column_dual)

    def centred(self, c1, c2):
        """Both matrices as Centred, with one wait for the device."""
        n = len(c1)
        facts = c1.new_empty(2, 5, dtype=torch.float64)
        parts = [self._centre(c, n, out) for c, out in zip((c1, c2), facts, strict=True)]
        found = []
        for (d, m, squares), (mean, m_square, d_square, least, diagonal) in zip(parts, facts.tolist(), strict=True):
            tidy = least >= 0 and diagonal == 0
            found.append(Centred(d, m, mean, d_square / n**2, m_square / n, squares, tidy))
        return found

    def _centre(self, c, n, out):
        means, m, squares, *scratch = out.new_empty(6, n).unbind()
        d = out.new_empty(n, n)
        with cuda_support.on_device(c):
            self.module.centre(c, means, m, squares, d, scratch[0], out, cuda_support.stream(c))
        return d, m, squares

    def gradient(self, one, two, mixture):
        """-(one.d T two.d + one.m two.m') of a Mixture T: (n, n) float64. The product scales its own result."""
        product = torch.addmm(one.d.new_empty(1), one.d, mixture.apply(two.d), beta=0, alpha=-1 / len(one.d))
        return product.addr_(one.m, two.m, alpha=-1)

    def square_difference(self, a, b, row=None, column=None):
        """sum_ik (a[i, k] - b[row[i], column[k]])^2 in float64; a, b (n, n) of one dtype, None = the identity."""
        scratch = a.new_empty(len(a) + 1, dtype=torch.float64)
        with cuda_support.on_device(a):
            self.module.square_difference(a, b, row, column, scratch[1:], scratch, cuda_support.stream(a))
        return scratch[0].item()

    def swaps(self, d1, d2, cost, column, least, most):
        """Improve `column` (n,) by exchanges of two partners, in place; returns how many were made.

        The device says whether any exchange helps. Where one does, the CPU makes them, on copies.
        """
        if not self.best_exchange(d1, d2, cost, column) > least:
            return 0
        transfers = [Transfer(t) for t in (d1, d2, cost, column)]
        d1, d2, cost, moved = (t.wait() for t in transfers)
        on_host = TorchKernels if backend.native()[0] is None else NativeKernels
        made = on_host(self.threads).swaps(d1, d2, cost, moved, least, most)
        column.copy_(moved)
        return made

    def best_exchange(self, d1, d2, cost, column):
        """The largest decrease of E by one exchange of two partners."""
        own = cost.gather(1, column[:, None])[:, 0]
        squares = d1.diagonal().contiguous(), d2.diagonal()[column]
        out = cost.new_empty(1 + self.module.tile_scratch)
        with cuda_support.on_device(cost):
            self.module.best_exchange(d1, d2, cost, column, own, *squares, out[1:], out, cuda_support.stream(cost))
        return out[0].item()
