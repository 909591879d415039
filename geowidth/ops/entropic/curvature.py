"""The second variation of the objective at a coupling: where it is negative, the coupling is a saddle.

Along X, whose rows and columns sum to 0, it is eps sum X^2 / T - 4 <D1 X D2, X>. With X = sqrt(T) Z (entry by entry)
that is eps (|Z|^2 - 4 / eps <S Z, Z>), S Z = sqrt(T) (D1 (sqrt(T) Z) D2), so the largest eigenvalue of S between the
projections onto such Z decides.
"""

import torch

DENSE = 256  # entries of a coupling up to which all eigenvalues are computed; Lanczos' largest beyond
LANCZOS = 100  # steps at most
CLOSE = 1e-4  # Lanczos' residual that will do, of the eigenvalue at which the curvature is 0
SEPARATE = 1e-12  # eigenvalues of the marginals' Gram matrix up to this are 0


class Curvature:
    """Of `problem`'s objective at `coupling` (n, m), on directions that keep the marginals, in float64."""

    def __init__(self, problem, coupling):
        coupling = coupling.double()
        self.shape = coupling.shape
        self.one, self.two = problem.d1.double(), problem.d2.double()
        self.zero = problem.eps_rel / 4  # the eigenvalue at which the curvature is 0
        self.root = coupling.sqrt()
        # Rows of ones of the two marginals, in units of Z and of norm 1.
        self.rows, self.columns = self.root / coupling.sum(1).sqrt()[:, None], self.root / coupling.sum(0).sqrt()
        overlap = self.rows * self.columns
        n, m = coupling.shape
        gram = torch.eye(n + m, dtype=torch.float64, device=coupling.device)
        gram[:n, n:], gram[n:, :n] = overlap, overlap.T
        self.inverse = torch.linalg.pinv(gram, rtol=SEPARATE, hermitian=True)

    def project(self, z):
        """z (..., n, m) less what changes row or column sums."""
        n = self.shape[0]
        sums = torch.cat([(self.rows * z).sum(-1), (self.columns * z).sum(-2)], -1)
        parts = sums @ self.inverse
        return z - self.rows * parts[..., :n, None] - self.columns * parts[..., None, n:]

    def apply(self, z):
        return self.project(self.root * (self.one @ (self.root * self.project(z)) @ self.two))

    def least(self, noise):
        """(least curvature over eps, a direction (n, m) of it whose entries' sizes sum to 1); noise (n, m) to begin
        with."""
        size = self.root.numel()
        if size <= DENSE:
            basis = torch.eye(size, dtype=torch.float64, device=self.root.device)
            matrix = self.apply(basis.reshape(size, *self.shape)).reshape(size, size)
            values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
            value, vector = values[-1].item(), vectors[:, -1].reshape(self.shape)
        else:
            value, vector = self.lanczos(self.project(noise.double()))
        direction = self.root * self.project(vector)
        return 1 - value / self.zero, direction / direction.abs().sum().clamp(min=1e-300)

    def lanczos(self, vector):
        """The largest eigenvalue and its vector, by Lanczos' iteration, every vector orthogonal to all before."""
        vectors = [vector.flatten() / vector.norm()]
        diagonal, beside = [], []
        while True:
            new = self.apply(vectors[-1].reshape(self.shape)).flatten()
            diagonal.append((new @ vectors[-1]).item())
            so_far = torch.stack(vectors)
            for _ in range(2):
                new = new - (so_far @ new) @ so_far
            beside.append(new.norm().item())
            value, weights = _largest(diagonal, beside[:-1])
            residual = beside[-1] * abs(weights[-1].item())
            if residual <= CLOSE * max(self.zero, value) or len(vectors) == LANCZOS:
                return value, (weights.to(new.device) @ so_far).reshape(self.shape)
            vectors.append(new / beside[-1])


def _largest(diagonal, beside):
    """The largest eigenvalue, and its vector, of a symmetric tridiagonal matrix."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        beside = torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
        matrix += beside + beside.T
    values, vectors = torch.linalg.eigh(matrix)
    return values[-1].item(), vectors[:, -1]
