"""The Sinkhorn step compiled for the CPU."""

import torch

from geowidth.ops import backend
from geowidth.ops.transport.step import ANDERSON_MEMORY, Step, potentials


class NativeStep(Step):
    """Compiled step on buffers of its own. dtype float32 or float64; r (n,), s (m,), a (n,), b (m,) of that dtype."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b, self.threads = r, s, a, b, threads
        self.shape = len(a), len(b)
        self.double = r.dtype == torch.float64
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.u, self.v = torch.empty_like(a), torch.empty_like(b)
        self.kernel = torch.empty(self.shape, dtype=r.dtype)
        self.module, _ = backend.native()

    def __call__(self, x, scale, plan, tolerance, most):
        """Overwrites `plan` (n, m) with the coupling.

        Returns (marginal error, passes, sum |plan - plan before|, r' plan s, sum plan * log plan).
        """
        log_kernel = (x.data_ptr(), self.r.data_ptr(), self.s.data_ptr())
        f, g, k, u, v = (t.data_ptr() for t in (self.f, self.g, self.kernel, self.u, self.v))
        error, passes, _, _ = self.module.sinkhorn(
            *log_kernel, scale, *self.shape, self.a.data_ptr(), self.b.data_ptr(), f, g, k, u, v, self.double,
            tolerance, most, ANDERSON_MEMORY, self.threads,
        )  # fmt: skip
        p = plan.data_ptr()
        change, inner, linear = self.module.form_plan(
            *log_kernel, *self.shape, k, u, v, p, p, self.double, self.threads
        )
        return error, passes, change, linear, scale * (inner + linear) + potentials(self)

    def inner(self, x, y):
        """sum_ij x_ij y_ij, added up in float64."""
        return self.module.inner_product(x.data_ptr(), y.data_ptr(), *self.shape, self.double, self.threads)

    def marginals(self, plan):
        """Row sums (n,) and column sums (m,) of plan in float64."""
        rows, columns = (torch.empty(size, dtype=torch.float64) for size in self.shape)
        self.module.marginals(
            plan.data_ptr(), *self.shape, rows.data_ptr(), columns.data_ptr(), self.double, self.threads
        )
        return rows, columns
