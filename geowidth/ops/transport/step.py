"""What the Sinkhorn steps of entropic Gromov-Wasserstein share.

Every step solves for the coupling exp(scale * (x + r s') + f + g') with marginals a, b, warm-started from potentials f
and g. Its entropy is formed as scale * <x + r s', T> + f' a + g' b: with a, b in place of the coupling's own sums, that
is the dual problem's value, and off by the second order, not the first, of what the marginals miss.
"""

from collections.abc import Callable

import torch

ANDERSON_MEMORY = 5


def potentials(step):
    """f' a + g' b of a step, in float64."""
    return (step.f.double() @ step.a.double() + step.g.double() @ step.b.double()).item()


class Step:
    """What the steps share; each of them gives `inner`, sum_ij x_ij y_ij."""

    inner: Callable[..., float]

    def inners(self, *pairs):
        """[sum_ij x_ij y_ij for x, y in pairs]."""
        return [self.inner(x, y) for x, y in pairs]

    def marginals(self, coupling):
        """Row sums (n,) and column sums (m,) of coupling (n, m) in float64."""
        return coupling.sum(1, dtype=torch.float64), coupling.sum(0, dtype=torch.float64)
