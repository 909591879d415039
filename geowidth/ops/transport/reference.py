"""Entropic transport written down plainly, in float64: what the op is tested against."""

import torch


def sinkhorn_reference(cost, eps, a, b, iterations=2000, tolerance=1e-13):
    """The coupling (n, m) of cost (n, m), eps and weights a (n,), b (m,), all float64: iterations in the log domain."""
    logs = -cost / eps
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(iterations):
        f = a.log() - torch.logsumexp(logs + g, 1)
        g = b.log() - torch.logsumexp(logs + f[:, None], 0)
        coupling = (logs + f[:, None] + g).exp()
        if (coupling.sum(1) - a).abs().sum() < tolerance:
            break
    return coupling
