"""A symmetric matrix as a few eigenvectors plus a multiple of the identity, for cheap products around a coupling."""

import torch

OVERSAMPLING = 16


class LowRankPlusShift:
    """D ~ U diag(w) U' + shift I.

    U (n, rank) spans the leading eigenvectors, found by a randomised range finder with one power iteration (Halko,
    Martinsson, Tropp, SIAM Review 53, 2011) on vectors drawn from a generator of its own on the CPU, hence always and
    everywhere the same; shift is the mean of the eigenvalues left out.
    """

    def __init__(self, matrix, rank):
        n = len(matrix)
        generator = torch.Generator().manual_seed(0)
        probes = torch.randn(n, min(n, rank + OVERSAMPLING), generator=generator, dtype=matrix.dtype).to(matrix.device)
        basis, _ = torch.linalg.qr(matrix @ (matrix @ probes))
        small = basis.T @ (matrix @ basis)
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        kept = values.abs().argsort(descending=True)[:rank]
        values = values[kept]
        self.vectors = (basis @ vectors[:, kept]).contiguous()
        left = n - len(kept)
        self.shift = ((matrix.trace() - values.sum()) / left).item() if left > 0 else 0.0
        self.values = values - self.shift


def add_product(out, left, right, coupling):
    """out += left @ coupling @ right for LowRankPlusShift left (n, n), right (m, m); coupling, out (n, m). Returns out.

    (U w U' + c) T (V z V' + d) = [U w, T V z c] [(U' T V z) V' + d U' T, V']' + c d T.
    """
    out.add_(coupling, alpha=left.shift * right.shift)
    columns = coupling @ right.vectors
    rows = left.vectors.T @ coupling
    middle = (rows @ right.vectors) * right.values
    first = torch.cat([left.vectors * left.values, columns * (right.values * left.shift)], 1)
    second = torch.cat([middle @ right.vectors.T + right.shift * rows, right.vectors.T], 0)
    return out.addmm_(first, second)
