"""What the backends of Gromov-Wasserstein share: cost matrices taken apart, and what torch does as well as anything."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Centred:
    """A symmetric cost matrix C taken apart: C_ij = d_ij + m_i + m_j + mean.

    d (n, n) and m (n,), float64, on the device of C: double-centred matrix and centred row means. mean: of C. spread:
    mean square of d. eccentricity: mean square of m. On a GPU also squares (n,), row sums of C_ij^2, and tidy, whether
    C has a zero diagonal and no negative entry; else None.
    """

    d: torch.Tensor
    m: torch.Tensor
    mean: float
    spread: float
    eccentricity: float
    squares: torch.Tensor | None = None
    tidy: bool | None = None


def centred(c, symmetric=True):
    """The Centred of a matrix by torch.

    One that is symmetric only up to rounding takes the means of rows and columns and the symmetric part of d, with
    which the descent is right to second order in the asymmetry.
    """
    d = c.to(torch.float64, copy=True)
    means = d.mean(1) if symmetric else (d.mean(1) + d.mean(0)) / 2
    grand = means.mean().item()
    m = means - grand
    d.sub_(means[:, None]).sub_(m)
    spread = d.square().mean().item()
    return Centred(d if symmetric else (d + d.T) / 2, m, grand, spread, m.square().mean().item())


class PlainPieces:
    """What torch does as well as anything."""

    def __init__(self, threads):
        self.threads = threads

    def centred(self, c1, c2):
        """Both matrices as Centred."""
        return centred(c1), centred(c2)

    def gradient(self, one, two, mixture):
        """-(one.d T two.d + one.m two.m') of a Mixture T: (n, n) float64."""
        product = (one.d @ mixture.apply(two.d)).mul_(-1 / len(one.d))
        return product.addr_(one.m, two.m, alpha=-1)
