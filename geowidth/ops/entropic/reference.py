"""Entropic Gromov-Wasserstein written down plainly, in float64: what the op is tested against."""

import torch

from geowidth.ops.gromov.reference import energy_reference, gromov_gradient_reference
from geowidth.ops.transport.reference import sinkhorn_reference


def entropic_step_reference(c1, c2, coupling, eps, a, b, iterations=2000, tolerance=1e-13):
    """The mirror step from `coupling`: Sinkhorn's iterations in the log domain on the linearised cost."""
    return sinkhorn_reference(gromov_gradient_reference(c1, c2, coupling), eps, a, b, iterations, tolerance)


def entropic_gromov_reference(c1, c2, eps, a, b, coupling, steps=500, tolerance=1e-10):
    """Projected gradient descent in the KL geometry from `coupling` until a step moves less than the tolerance."""
    for _ in range(steps):
        new = entropic_step_reference(c1, c2, coupling, eps, a, b)
        change = (new - coupling).abs().sum().item()
        coupling = new
        if change < tolerance:
            break
    return coupling


def entropic_objective_reference(c1, c2, coupling, eps, a, b):
    """E(T) + eps KL(T | a b')."""
    ratio = coupling.double() / torch.outer(a, b)
    return energy_reference(c1, c2, coupling) + eps * torch.special.xlogy(coupling.double(), ratio).sum().item()
