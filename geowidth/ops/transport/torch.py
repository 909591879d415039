"""The Sinkhorn step in plain torch."""

import math

import torch

from geowidth.ops.transport.step import Step, potentials

# After so many visits without a smaller error rounding is all that is left, if the error is this small.
PATIENCE, ROUNDING = 30, {torch.float32: 1e-4, torch.float64: 1e-9}


class TorchStep(Step):
    """Plain step: Sinkhorn's iterations in the log domain."""

    def __init__(self, r, s, a, b, threads):
        self.r, self.s, self.a, self.b = r, s, a, b
        self.f, self.g = torch.zeros_like(a), torch.zeros_like(b)
        self.kernel = a.new_empty(len(a), len(b))

    def __call__(self, x, scale, coupling, tolerance, most):
        entries = scale * (x + torch.outer(self.r, self.s))
        log_a, log_b = self.a.log(), self.b.log()
        error, passes, least, last = math.inf, 0, math.inf, 0
        while passes < most:
            self.f = log_a - torch.logsumexp(entries + self.g, 1)
            columns = torch.logsumexp(entries + self.f[:, None], 0)
            error = ((columns + self.g).exp() - self.b).abs().sum().item()
            passes += 1
            least, last = (error, passes) if error < least else (least, last)
            stalled = least <= ROUNDING[coupling.dtype] and passes - last >= PATIENCE
            if error <= tolerance or stalled:
                break
            self.g = log_b - columns
        else:
            self.f = log_a - torch.logsumexp(entries + self.g, 1)
            error = ((entries + self.f[:, None] + self.g).exp().sum(0) - self.b).abs().sum().item()
        logs = entries + self.f[:, None] + self.g
        new = logs.exp()
        change = (new - coupling).abs().sum().item()
        coupling.copy_(new)
        linear = (self.r @ (coupling @ self.s)).item()
        return error, passes, change, linear, scale * (self.inner(x, coupling) + linear) + potentials(self)

    def inner(self, x, y):
        return torch.sum(x * y, dtype=torch.float64).item()
