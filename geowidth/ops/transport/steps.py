"""The Sinkhorn step of entropic Gromov-Wasserstein: compiled for the CPU, for CUDA GPUs, and in plain torch.

All solve for the coupling exp(scale * (x + r s') + f + g') with marginals a, b, warm-started from potentials f and g.
Its entropy is formed as scale * <x + r s', T> + f' a + g' b: with a, b in place of the coupling's own sums, that is the
dual problem's value, and off by the second order, not the first, of what the marginals miss.
"""

import math

import torch

from geowidth.ops import backend, cuda_support

ANDERSON_MEMORY = 5
# After so many visits without a smaller error rounding is all that is left, if the error is this small.
PATIENCE, ROUNDING = 30, {torch.float32: 1e-4, torch.float64: 1e-9}


def _potentials(step):
    return (step.f.double() @ step.a.double() + step.g.double() @ step.b.double()).item()


class Step:
    """What the steps share."""

    def inners(self, *pairs):
        """[sum_ij x_ij y_ij for x, y in pairs]."""
        return [self.inner(x, y) for x, y in pairs]

    def marginals(self, plan):
        """Row sums (n,) and column sums (m,) of plan (n, m) in float64."""
        return plan.sum(1, dtype=torch.float64), plan.sum(0, dtype=torch.float64)


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


class CudaStep(Step):
    """Compiled step on a GPU: a solve is one launch, and one small read-back tells what came of it.

    Arguments as of NativeStep, on the device. resident_rows: kernel rows that a block keeps in its shared memory over a
    solve, at most; None = as many as fit, 0 = all are read from device memory at every visit. Nothing is allocated and
    nothing waited for between the launches of a step: `launch` can be captured in a CUDA graph.
    """

    def __init__(self, r, s, a, b, threads, resident_rows=None):
        del threads
        self.r, self.s, self.a, self.b = r, s, a, b
        self.shape = len(a), len(b)
        self.resident = -1 if resident_rows is None else resident_rows
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.module, _ = backend.cuda()
        suffix = "_float64" if r.dtype == torch.float64 else "_float32"
        names = "sinkhorn_shape", "sinkhorn_solve", "sinkhorn_plan", "inner_product"
        describe, self.solve, self.form, self.multiply = (getattr(self.module, name + suffix) for name in names)
        with cuda_support.on_device(r):
            self.layout = describe(*self.shape, self.resident)
        # Rows are padded to 16 bytes; between solves the buffer is free for others.
        self.padded = a.new_empty(len(a), self.layout["stride"])
        self.kernel = self.padded[:, : len(b)]
        self.workspace = torch.empty(self.layout["workspace_bytes"], dtype=torch.uint8, device=a.device)
        self.outcome = torch.empty(8, dtype=torch.float64, device=a.device)
        self.scratch = torch.empty(self.module.inner_product_scratch, dtype=torch.float64, device=a.device)
        self.products = torch.empty(4, dtype=torch.float64, device=a.device)

    def launch(self, x, scale, plan, tolerance, most):
        """Enqueue the solve and the new plan; `outcome` (8,) float64 on the device then holds the marginal error, the
        passes, how often the kernel was formed and how often by way of the log domain, sum |plan - plan before|,
        r' plan s, sum x * plan and f' a + g' b."""
        parts = (x, self.r, self.s, self.a, self.b, self.f, self.g, self.padded, self.workspace, self.outcome)
        problem = [part.data_ptr() for part in parts], scale, *self.shape, self.resident
        stream = cuda_support.stream(x)
        with cuda_support.on_device(x):
            self.solve(*problem, tolerance, most, ANDERSON_MEMORY, stream)
            self.form(*problem, plan.data_ptr(), plan.data_ptr(), stream)

    def __call__(self, x, scale, plan, tolerance, most):
        """As NativeStep's. A tolerance below 0 asks for exactly `most` visits, whatever they bring: for timing."""
        self.launch(x, scale, plan, tolerance, most)
        error, passes, _, _, change, linear, inner, potentials = self.outcome.tolist()
        return error, int(passes), change, linear, scale * (inner + linear) + potentials

    def inner(self, x, y):
        return self.inners((x, y))[0]

    def inners(self, *pairs):
        """Of at most four pairs, with one read-back."""
        stream = cuda_support.stream(self.r)
        with cuda_support.on_device(self.r):
            for k, (x, y) in enumerate(pairs):
                out = self.products[k].data_ptr()
                self.multiply(x.data_ptr(), y.data_ptr(), x.numel(), self.scratch.data_ptr(), out, stream)
        return self.products[: len(pairs)].tolist()


class TorchStep(Step):
    """The same in plain torch: Sinkhorn's iterations in the log domain."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b = r, s, a, b
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.kernel = a.new_empty(len(a), len(b))

    def __call__(self, x, scale, plan, tolerance, most):
        entries = scale * (x + torch.outer(self.r, self.s))
        log_a, log_b = self.a.log(), self.b.log()
        error, passes, least, last = math.inf, 0, math.inf, 0
        while passes < most:
            self.f = log_a - torch.logsumexp(entries + self.g, 1)
            columns = torch.logsumexp(entries + self.f[:, None], 0)
            error = ((columns + self.g).exp() - self.b).abs().sum().item()
            passes += 1
            least, last = (error, passes) if error < least else (least, last)
            stalled = least <= ROUNDING[plan.dtype] and passes - last >= PATIENCE
            if error <= tolerance or stalled:
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
