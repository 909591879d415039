"""The Sinkhorn step compiled for CUDA GPUs."""

import torch

from geowidth.ops import backend, cuda_support
from geowidth.ops.transport.step import ANDERSON_MEMORY, Step


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
        double = r.dtype == torch.float64
        describe = self.module.sinkhorn_shape_float64 if double else self.module.sinkhorn_shape_float32
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
        problem = self.module.SinkhornProblem(
            x=x, r=self.r, s=self.s, scale=scale, a=self.a, b=self.b, f=self.f, g=self.g, kernel=self.padded,
            workspace=self.workspace, outcome=self.outcome, resident=self.resident,
        )  # fmt: skip
        settings = self.module.SinkhornSettings(tolerance, most, ANDERSON_MEMORY)
        stream = cuda_support.stream(x)
        with cuda_support.on_device(x):
            self.module.sinkhorn_solve(problem, settings, stream)
            self.module.sinkhorn_plan(problem, plan, plan, stream)

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
                self.module.inner_product(x, y, self.scratch, self.products[k], stream)
        return self.products[: len(pairs)].tolist()
