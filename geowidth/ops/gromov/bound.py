"""A proven lower bound of the Gromov-Wasserstein value, from sorted numbers."""

import numpy as np
import torch


def lower_bound(c1, c2):
    """A lower bound of E: the larger of Memoli's first (eccentricities) and second (distributions of distances).

    Each is a one-dimensional transport problem between sorted values (Memoli 2011, section 6), with uniform weights.
    Given back a hair (1e-12) smaller than computed, for the rounding of its sums.
    """
    if c1.device.type != "cpu":
        return lower_bound_on_device(c1, c2)
    a, b = c1.numpy(), c2.numpy()
    n = len(a)
    first = [np.sort(np.sqrt(np.einsum("ij,ij->i", c, c, dtype=np.float64) / n)) for c in (a, b)]
    eccentricities = np.square(first[0] - first[1]).mean()
    if all((np.diagonal(c) == 0).all() and c.min() >= 0 and (c == c.T).all() for c in (a, b)):
        second = [np.sort(np.concatenate([row[i + 1 :] for i, row in enumerate(c)])) for c in (a, b)]
        share = 2 / n**2
    else:
        second = [np.sort(c, axis=None) for c in (a, b)]
        share = 1 / n**2
    distances = share * np.square(np.subtract(*second, dtype=np.float64)).sum()
    return float(max(eccentricities, distances)) * (1 - 1e-12)


def lower_bound_on_device(c1, c2, squares=None, tidy=None):
    """The same by torch, where the costs lie.

    squares: sums of squares of each matrix's rows, (n,) float64. tidy: whether both are symmetric, with a zero
    diagonal and no negative entry, so that the upper triangle tells all. Both are computed if not given.
    """
    n, both = len(c1), (c1, c2)
    if squares is None:
        squares = [c.double().square().sum(1) for c in both]
    if tidy is None:
        tidy = not any(bool((c.diagonal() != 0).any() | (c.min() < 0) | (c != c.T).any()) for c in both)
    first = [(square / n).sqrt().sort().values for square in squares]
    eccentricities = (first[0] - first[1]).square().mean()
    # Sorted one after the other, so that no more than one matrix's worth of sorting space is in use.
    rows, columns = torch.triu_indices(n, n, 1, device=c1.device) if tidy else (None, None)
    second = [(c[rows, columns] if tidy else c.flatten()).sort().values.double() for c in both]
    distances = (2 if tidy else 1) / n**2 * (second[0] - second[1]).square().sum()
    return max(eccentricities.item(), distances.item()) * (1 - 1e-12)
