"""Couplings that are mixtures of few permutations (and perhaps the product coupling), and E on them."""

import numpy as np
import torch


class Mixture:
    """T = sum_a w_a P_a / n, where an atom None stands for the product coupling 1 1' / n^2.

    On mixtures E is a quadratic form w' e w whose entries e_ab = mean_ik (c1_ik - c2_a(i),b(k))^2 are means of squares:
    so is every value, which therefore never comes out negative. `pair(a, b)` computes e_ab. `identity`: the permutation
    0, ..., n - 1 on the costs' device, where all permutations lie; weights and e are numpy, on the host.
    """

    def __init__(self, pair, atom, identity):
        self.pair, self.identity = pair, identity
        self.atoms = [atom]
        self.weights = np.ones(1)
        self.form = np.array([[pair(atom, atom)]])

    @property
    def value(self):
        return float(self.weights @ self.form @ self.weights)

    @property
    def pure(self):
        """Whether the coupling is one permutation."""
        return len(self.atoms) == 1 and self.atoms[0] is not None

    @property
    def product_only(self):
        return len(self.atoms) == 1 and self.atoms[0] is None

    @property
    def product_weight(self):
        return float(sum(w for w, a in zip(self.weights, self.atoms, strict=True) if a is None))

    def items(self):
        """(weight, permutation) of every permutation in the mixture."""
        return [(float(w), a) for w, a in zip(self.weights, self.atoms, strict=True) if a is not None]

    def permutations(self):
        """The permutations of `items`, stacked: (k, n) int64."""
        columns = [a for _, a in self.items()]
        return torch.stack(columns) if columns else self.identity.new_empty((0, len(self.identity)))

    def heaviest(self):
        """The permutation of largest weight (the identity if there is none)."""
        items = self.items()
        return max(items, key=lambda item: item[0])[1] if items else self.identity

    def apply(self, matrix):
        """n T matrix without the product coupling's part, which is 0 on a centred matrix."""
        if self.pure:
            column = self.atoms[0]
            return matrix if column is self.identity else matrix[column]
        return sum(w * matrix[a] for w, a in self.items())

    def inner(self, cost):
        """<cost, T> for a cost whose entries sum to 0 (so that the product coupling adds nothing)."""
        rows = self.identity
        return sum(w * cost[rows, a].mean().item() for w, a in self.items())

    def replace(self, atom):
        """Become the permutation `atom` if its value is smaller; whether it was."""
        value = self.pair(atom, atom)
        if value >= self.value:
            return False
        self.atoms, self.weights, self.form = [atom], np.ones(1), np.array([[value]])
        return True

    def improve(self, atom, plain):
        """Move towards permutation `atom`, unless `plain` then to the best mixture nearby; whether the value fell."""
        before = self.value
        new = self._index(atom)
        self._step_towards(new)
        if not plain:
            self._rebalance()
        self._drop_empty()
        return self.value < before

    def _index(self, atom):
        for k, known in enumerate(self.atoms):
            if known is not None and torch.equal(known, atom):
                return k
        row = np.array([(self.pair(a, atom) + self.pair(atom, a)) / 2 for a in self.atoms])
        self.form = np.block([[self.form, row[:, None]], [row[None], np.array([[self.pair(atom, atom)]])]])
        self.weights = np.append(self.weights, 0.0)
        self.atoms.append(atom)
        return len(self.atoms) - 1

    def _move(self, direction, longest):
        """Exact line search along `direction` (summing to 0), at most `longest`; the decrease."""
        slope = 2 * direction @ self.form @ self.weights
        curvature = direction @ self.form @ direction
        step = longest
        if curvature > 0:
            step = min(longest, -slope / (2 * curvature))
        decrease = -step * (slope + step * curvature)
        if step <= 0 or decrease <= 0:
            return 0.0
        self.weights = self.weights + step * direction
        return decrease

    def _step_towards(self, k):
        direction = -self.weights
        direction[k] += 1
        self._move(direction, 1.0)
        self.weights = np.maximum(self.weights, 0)

    def _rebalance(self):
        """Pairwise conditional-gradient steps among the atoms: cheap, as they need no product of matrices."""
        if len(self.atoms) == 1:
            return
        for _ in range(100 * len(self.atoms)):
            slope = self.form @ self.weights
            held = self.weights > 0
            worst = int(np.where(held, slope, -np.inf).argmax())
            best = int(slope.argmin())
            direction = np.zeros(len(self.atoms))
            direction[best] += 1
            direction[worst] -= 1
            longest = self.weights[worst]
            if self._move(direction, longest) <= 1e-15 * self.form.max():
                break
            if self.weights[worst] < 1e-15:
                self.weights[worst] = 0
        self.weights = self.weights / self.weights.sum()

    def _drop_empty(self):
        held = np.flatnonzero(self.weights > 0)
        self.atoms = [self.atoms[k] for k in held]
        self.weights = self.weights[held]
        self.form = self.form[np.ix_(held, held)]
