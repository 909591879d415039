"""Entropic Gromov-Wasserstein written down plainly, in float64: what the op is tested against."""

import torch

from geowidth.ops.gromov.reference import energy_reference, gromov_gradient_reference
from geowidth.ops.transport.reference import sinkhorn_reference


def entropic_step_reference(c1, c2, plan, eps, a, b, iterations=2000, tolerance=1e-13):
    """The mirror step from `plan`: Sinkhorn's iterations in the log domain on the linearised cost."""
    return sinkhorn_reference(gromov_gradient_reference(c1, c2, plan), eps, a, b, iterations, tolerance)


def entropic_gromov_reference(c1, c2, eps, a, b, plan, steps=500, tolerance=1e-10):
    """Projected gradient descent in the KL geometry from `plan` until a step moves less than the tolerance."""
    for _ in range(steps):
        new = entropic_step_reference(c1, c2, plan, eps, a, b)
        change = (new - plan).abs().sum().item()
        plan = new
        if change < tolerance:
            break
    return plan


def entropic_objective_reference(c1, c2, plan, eps, a, b):
    """E(T) + eps KL(T | a b')."""
    ratio = plan.double() / torch.outer(a, b)
    return energy_reference(c1, c2, plan) + eps * torch.special.xlogy(plan.double(), ratio).sum().item()
