"""The Sinkhorn step compiled for the CPU."""

import torch

from geowidth.ops import backend
from geowidth.ops.transport.step import ANDERSON_MEMORY, Step, potentials


class NativeStep(Step):
    """Compiled step on buffers of its own. dtype float32 or float64; r (n,), s (m,), a (n,), b (m,) of that dtype."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b, self.threads = r, s, a, b, threads
        self.shape = len(a), len(b)
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.u, self.v = torch.empty_like(a), torch.empty_like(b)
        self.kernel = torch.empty(self.shape, dtype=r.dtype)
        self.module, _ = backend.native()

    def __call__(self, x, scale, plan, tolerance, most):
        """Overwrites `plan` (n, m) with the coupling.

        Returns (marginal error, passes, sum |plan - plan before|, r' plan s, sum plan * log plan).
        """
        log_kernel = self.module.LogKernel(x, self.r, self.s, scale)
        settings = self.module.SinkhornSettings(tolerance, most, ANDERSON_MEMORY, self.threads)
        coupling = self.kernel, self.u, self.v
        error, passes, _, _ = self.module.sinkhorn(log_kernel, (self.a, self.b), (self.f, self.g), coupling, settings)
        change, inner, linear = self.module.form_plan(log_kernel, coupling, plan, plan, self.threads)
        return error, passes, change, linear, scale * (inner + linear) + potentials(self)

    def inner(self, x, y):
        """sum_ij x_ij y_ij, added up in float64."""
        return self.module.inner_product(x, y, self.threads)

    def marginals(self, plan):
        """Row sums (n,) and column sums (m,) of plan in float64."""
        rows, columns = (torch.empty(size, dtype=torch.float64) for size in self.shape)
        self.module.marginals(plan, rows, columns, self.threads)
        return rows, columns
