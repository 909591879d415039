"""The Gromov-Wasserstein statistic of two clouds whose points correspond.

E(T) = sum_ijkl (c1_ik - c2_jl)^2 T_ij T_kl over couplings T with uniform marginals (Memoli, "Gromov-Wasserstein
distances and the metric approach to object matching", Found. Comput. Math. 11, 2011; his distance is sqrt(min E) / 2).
The problem is not convex, and a descent finds what lies below its start. Here point i of one cloud is the image of
point i of the other, so the descent starts at the identity, and its value is never exceeded.

With D = HCH (H centres), m the centred row means and k the grand means, over couplings
    E(T) = (k1 - k2)^2 + [2 (|m1|^2 + |m2|^2) / n - 4 m1' T m2] + [(|D1|^2 + |D2|^2) / n^2 - 2 <D1 T D2, T>]:
scale, eccentricity and shape. Both brackets are sums of squares and are computed as such.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from geowidth.errors import UserError, choose
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.gromov_inputs import cost_pair, positive, thread_count, torch_threads
from geowidth.ops.gromov_kernels import NativeKernels, TorchKernels
from geowidth.ops.gromov_mixture import Mixture

STARTS = ("identity", "product")
# So many steps are plain line searches, before mixtures are re-solved: the basin reached is then the plain method's.
PLAIN_STEPS = 30
# With starts="auto" the product coupling is not tried where the identity did well, that is: from this many points on,
# its descent ended below this share of the product coupling's E, above this share of its own beginning, with at most
# this share of the points moved. Of 7,411 synthetic pairs of clouds (Gaussian, clustered, curves; 1 to 32 dimensions;
# all strengths of noise) 718 were so chosen; the product start would have won 17 of them, by at most 1.1 %.
WELL_MATCHED = {"points": 64, "of_product": 0.2, "of_identity": 0.9, "moved": 0.5}


@dataclass(frozen=True)
class GromovResult:
    """What `gromov_wasserstein` found.

    value: E at the best coupling, in squared units of the costs; `gw` = sqrt(value). identity: E at the identity.
    gap: Frank-Wolfe gap of the coupling, a proven bound from dual variables: to first order no coupling is better by
    more; 0 = stationary. identity_gap: the same of the identity. lower: a lower bound of E over all couplings.
    scale, eccentricity, shape: the exact split of value. weights (k,), permutations (k, n): the coupling is
    product_weight / n^2 + sum_a weights[a] [j = permutations[a, i]] / n, nearly always one permutation.
    start: where the best descent started. converged: whether its gap fell below tolerance * value.
    """

    value: float
    identity: float
    gap: float
    identity_gap: float
    lower: float
    scale: float
    eccentricity: float
    shape: float
    weights: torch.Tensor
    permutations: torch.Tensor
    product_weight: float
    start: str
    iterations: int
    swaps: int
    converged: bool

    @property
    def gw(self):
        return math.sqrt(self.value)

    @property
    def moved(self):
        """How many points have another partner than their own (in the heaviest permutation)."""
        if len(self.weights) == 0:
            return self.permutations.shape[1]
        heaviest = self.permutations[int(self.weights.argmax())]
        return int((heaviest != torch.arange(len(heaviest))).sum())

    def coupling(self):
        """The coupling as a dense (n, n) float64 tensor; rows and columns sum to 1/n."""
        n = self.permutations.shape[1]
        dense = torch.full((n, n), self.product_weight / n**2, dtype=torch.float64)
        for weight, column in zip(self.weights.tolist(), self.permutations, strict=True):
            dense[torch.arange(n), column] += weight / n
        return dense

    def to_json(self):
        """All numbers but the coupling."""
        names = "value gw identity gap identity_gap lower scale eccentricity shape moved start iterations swaps"
        return {name: getattr(self, name) for name in [*names.split(), "converged"]}


def gromov_wasserstein(
    c1, c2, *, tolerance=1e-6, starts="auto", max_iterations=500, swaps=True, threads=None, backend=None
):
    """The Gromov-Wasserstein statistic of two (n, n) cost matrices with uniform weights: a GromovResult.

    c1, c2: torch or numpy, symmetric, finite, of one dtype (float32 or float64; narrower floats are widened to
    float32, integers to float64). Sums and products are float64. The identity is evaluated and certified by one product
    and a dual-feasible assignment; where it is not stationary, conditional-gradient steps with exact assignment and
    exact line search follow until the gap is at most tolerance * E (Vayer et al., "Optimal transport for structured
    data", ICML 2019, Algorithm 2), later ones re-solving for the best mixture of the permutations met, and at a
    stationary permutation exchanges of two partners (`swaps`), which see the second order.
    starts: "identity", "product", a sequence of them (the better result counts), or "auto": the identity, and the
    product coupling too unless the clouds clearly match. With the identity among them, its value is never exceeded.
    Raises UserError naming the argument and its first bad index.
    """
    threads = thread_count(threads)
    tolerance = positive(tolerance, "tolerance")
    starts = _starts(starts)
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise UserError(f"max_iterations is {max_iterations!r}; a whole number of at least 1 is needed")
    c1, c2 = cost_pair(c1, c2, threads, same_size=True)
    chosen = GROMOV_WASSERSTEIN.choose(c1.device.type, backend)
    with torch_threads(threads):
        return chosen.run(c1, c2, tolerance, starts, max_iterations, swaps, threads)


def _starts(starts):
    if isinstance(starts, str):
        choose("starts", starts, ("auto", *STARTS))
        return starts if starts == "auto" else (starts,)
    starts = tuple(starts)
    if not starts:
        raise UserError(f"starts is empty; allowed: auto, {', '.join(STARTS)}")
    for start in starts:
        choose("start", start, STARTS)
    return starts


def lower_bound(c1, c2):
    """A lower bound of E: the larger of Memoli's first (eccentricities) and second (distributions of distances).

    Each is a one-dimensional transport problem between sorted values (Memoli 2011, section 6), with uniform weights.
    Given back a hair (1e-12) smaller than computed, for the rounding of its sums.
    """
    a, b = c1.numpy(), c2.numpy()
    n = len(a)
    first = [np.sort(np.sqrt(np.einsum("ij,ij->i", c, c, dtype=np.float64) / n)) for c in (a, b)]
    eccentricities = np.square(first[0] - first[1]).mean()
    if all((np.diagonal(c) == 0).all() and c.min() >= 0 for c in (a, b)):
        upper = np.triu_indices(n, 1)
        second = [np.sort(c[upper]) for c in (a, b)]
        share = 2 / n**2
    else:
        second = [np.sort(c, axis=None) for c in (a, b)]
        share = 1 / n**2
    distances = share * np.square(np.subtract(*second, dtype=np.float64)).sum()
    return float(max(eccentricities, distances)) * (1 - 1e-12)


class Problem:
    """Two centred cost matrices and what is derived from them, for one run."""

    def __init__(self, c1, c2, kernels):
        self.c1, self.c2, self.kernels, self.n = c1, c2, kernels, len(c1)
        self.d1, self.m1, self.k1 = centred(c1)
        self.d2, self.m2, self.k2 = centred(c2)
        self.spread = (self.d1.square().mean() + self.d2.square().mean()).item()
        self.eccentricities = 2 * (self.m1.square().mean() + self.m2.square().mean()).item()
        self.product = (self.k1 - self.k2) ** 2 + self.eccentricities + self.spread

    def gradient(self, mixture):
        """-(D1 T D2 + m1 m2'), a quarter of the gradient of E up to row and column constants: (n, n) float64."""
        if mixture.product_only:
            cost = torch.zeros_like(self.d1)
        else:
            cost = self.d1 @ mixture.apply(self.d2)
            cost.mul_(-1.0 / self.n)
        return cost.addr_(self.m1, self.m2, alpha=-1)

    def pair(self, a, b):
        """E's bilinear form at permutations a and b; None stands for the product coupling."""
        if a is None or b is None:
            column = b if a is None else a
            return self.product - (0 if column is None else 4 * (self.m1 @ self.m2[column]).item() / self.n)
        return self.kernels.square_difference(self.c1, self.c2, a, b) / self.n**2

    def split(self, mixture):
        """(scale, eccentricity, shape) of a mixture."""
        eccentricity = mixture.product_weight * self.eccentricities
        for weight, column in mixture.items():
            eccentricity += weight * 2 * (self.m1 - self.m2[column]).square().mean().item()
        shape = mixture.product_weight * (2 - mixture.product_weight) * self.spread
        for w, a in mixture.items():
            for v, b in mixture.items():
                shape += w * v * self.kernels.square_difference(self.d1, self.d2, a, b) / self.n**2
        return (self.k1 - self.k2) ** 2, eccentricity, shape


def centred(c):
    """(HCH, centred row means, grand mean) of a symmetric matrix, in float64."""
    d = c.to(torch.float64, copy=True)
    means = d.mean(1)
    grand = means.mean().item()
    d.sub_(means[:, None]).sub_(means - grand)
    return d, means - grand, grand


def _solve(c1, c2, tolerance, starts, max_iterations, swaps, threads, kernels):
    problem = Problem(c1, c2, kernels(threads))
    identity = torch.arange(problem.n)
    runs = []
    for start in STARTS if starts == "auto" else starts:
        if starts == "auto" and runs and _well_matched(problem, runs[0]):
            break
        mixture = Mixture(problem.pair, identity if start == "identity" else None)
        runs.append(_descend(problem, mixture, start, tolerance, max_iterations, swaps))
    first = next((run for run in runs if run.start == "identity"), None) or _certify(problem, identity)
    return _report(problem, min(runs, key=lambda run: run.mixture.value), first)


def _well_matched(problem, run):
    value, limits = run.mixture.value, WELL_MATCHED
    moved = (run.mixture.heaviest(problem.n) != torch.arange(problem.n)).double().mean().item()
    return (
        problem.n >= limits["points"]
        and value <= limits["of_product"] * problem.product
        and value >= limits["of_identity"] * run.first_value
        and moved <= limits["moved"]
    )


def _certify(problem, column):
    """A run that stays where it begins: the value and the gap of one permutation."""
    run = _Run(Mixture(problem.pair, column), "identity")
    cost = problem.gradient(run.mixture)
    run.first_gap = _gap(problem, run.mixture, cost, problem.kernels.assignment(cost, column, None))
    return run


def _report(problem, best, identity):
    mixture = best.mixture
    scale, eccentricity, shape = problem.split(mixture)
    return GromovResult(
        value=mixture.value,
        identity=identity.first_value,
        gap=best.gap,
        identity_gap=identity.first_gap,
        lower=min(lower_bound(problem.c1, problem.c2), mixture.value),
        scale=scale,
        eccentricity=eccentricity,
        shape=shape,
        weights=torch.tensor([w for w, _ in mixture.items()], dtype=torch.float64),
        permutations=mixture.permutations(problem.n),
        product_weight=mixture.product_weight,
        start=best.start,
        iterations=best.iterations,
        swaps=best.swaps,
        converged=best.converged,
    )


class _Run:
    """A descent: where it began, and the state it is in."""

    def __init__(self, mixture, start):
        self.mixture, self.start = mixture, start
        self.first_value = mixture.value
        self.gap = self.first_gap = math.inf
        self.iterations = self.swaps = 0
        self.converged = False


def _gap(problem, mixture, cost, found):
    return max(0.0, 4 * (mixture.inner(cost) - found.bound / problem.n))


def _descend(problem, mixture, start, tolerance, max_iterations, swaps):
    run, duals = _Run(mixture, start), None
    floor = 1e-14 * (problem.spread + problem.eccentricities)
    for run.iterations in range(1, max_iterations + 1):
        cost = problem.gradient(mixture)
        found = problem.kernels.assignment(cost, mixture.heaviest(problem.n), duals)
        run.gap = _gap(problem, mixture, cost, found)
        if run.iterations == 1:
            run.first_gap = run.gap
        # A permutation moves on in whole steps, so going a thousand times further costs a step or none.
        small = max(tolerance * mixture.value * (1e-3 if mixture.pure else 1), floor)
        if run.gap <= small:
            run.converged = True
            if not (swaps and mixture.pure and _swap(problem, run, cost, small)):
                break
            duals = None
        else:
            duals = found.column_dual
            if not mixture.improve(found.column, plain=run.iterations <= PLAIN_STEPS):
                break
    return run


def _swap(problem, run, cost, least):
    """Exchange partners at a stationary permutation; True if that lowered the value."""
    column = run.mixture.heaviest(problem.n).clone()
    made = problem.kernels.swaps(problem.d1, problem.d2, cost, column, least, 4 * problem.n)
    if made == 0 or not run.mixture.replace(column):
        return False
    run.swaps += made
    return True


GROMOV_WASSERSTEIN = Operation(
    "gromov_wasserstein",
    [
        Backend("native", ("cpu",), partial(_solve, kernels=NativeKernels), why_not_native),
        Backend("torch", ("cpu",), partial(_solve, kernels=TorchKernels)),
    ],
)
