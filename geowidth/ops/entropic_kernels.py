"""The Sinkhorn step of entropic Gromov-Wasserstein, compiled and in plain torch.

Both solve for the coupling exp(scale * (x + r s') + f + g') with marginals a, b, warm-started from potentials f and g.
Its entropy is formed as scale * <x + r s', T> + f' a + g' b: with a, b in place of the coupling's own sums, that is the
dual problem's value, and off by the second order, not the first, of what the marginals miss.
"""

import math

import torch

from geowidth.ops.backend import native

ANDERSON_MEMORY = 5


def _potentials(step):
    return (step.f.double() @ step.a.double() + step.g.double() @ step.b.double()).item()


class NativeStep:
    """Compiled step on buffers of its own. dtype float32 or float64; r (n,), s (m,), a (n,), b (m,) of that dtype."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b, self.threads = r, s, a, b, threads
        self.shape = len(a), len(b)
        self.double = r.dtype == torch.float64
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.u, self.v = torch.empty_like(a), torch.empty_like(b)
        self.kernel = torch.empty(self.shape, dtype=r.dtype)
        self.module, _ = native()

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
        return error, passes, change, linear, scale * (inner + linear) + _potentials(self)

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


class TorchStep:
    """The same in plain torch: Sinkhorn's iterations in the log domain."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b = r, s, a, b
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.kernel = torch.empty(len(a), len(b), dtype=r.dtype)

    def __call__(self, x, scale, plan, tolerance, most):
        entries = scale * (x + torch.outer(self.r, self.s))
        log_a, log_b = self.a.log(), self.b.log()
        error, passes = math.inf, 0
        while passes < most:
            self.f = log_a - torch.logsumexp(entries + self.g, 1)
            columns = torch.logsumexp(entries + self.f[:, None], 0)
            error = ((columns + self.g).exp() - self.b).abs().sum().item()
            passes += 1
            if error <= tolerance:
                break
            self.g = log_b - columns
        else:
            self.f = log_a - torch.logsumexp(entries + self.g, 1)
            error = ((entries + self.f[:, None] + self.g).exp().sum(0) - self.b).abs().sum().item()
        logs = entries + self.f[:, None] + self.g
        new = logs.exp()
        change = (new - plan).abs().sum().item()
        plan.copy_(new)
        linear = (self.r @ (plan @ self.s)).item()
        return error, passes, change, linear, scale * (self.inner(x, plan) + linear) + _potentials(self)

    def inner(self, x, y):
        return torch.sum(x * y, dtype=torch.float64).item()

    def marginals(self, plan):
        return plan.sum(1, dtype=torch.float64), plan.sum(0, dtype=torch.float64)
