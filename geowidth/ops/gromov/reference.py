"""Gromov-Wasserstein written down plainly, in float64: what the ops are tested against."""

import torch


def energy_reference(c1, c2, coupling):
    """E(T) = sum_ijkl (c1_ik - c2_jl)^2 T_ij T_kl of any coupling (n, m), as a sum of terms that are not negative.

    Given j and l, c1_ik is a random variable under T_ij T_kl: E is the mean of the squared distance of its mean from
    c2_jl, plus its variance, where T has mass.
    """
    c1, c2, coupling = (torch.as_tensor(t).double() for t in (c1, c2, coupling))
    columns = coupling.sum(0)
    mass = torch.outer(columns, columns)
    centre = c1.mean()
    c1, c2 = c1 - centre, c2 - centre
    first = coupling.T @ c1 @ coupling
    second = coupling.T @ c1.square() @ coupling
    safe = torch.where(mass > 0, mass, 1.0)
    mean = first / safe
    variance = (second / safe - mean.square()).clamp(min=0)
    return (mass * ((mean - c2).square() + variance)).sum().item()


def gromov_gradient_reference(c1, c2, coupling):
    """Gradient of E at a coupling, up to terms constant along rows or columns: -4 c1 T c2."""
    return -4 * (c1.double() @ coupling.double() @ c2.double())
