"""Couplings from which entropic Gromov-Wasserstein may descend, and the disturbance that leaves a saddle."""

import math

import torch

from geowidth.errors import UserError, choose
from geowidth.inputs import numbers_on
from geowidth.ops.entropic.descent import round_onto_marginals
from geowidth.ops.scale import over_power_of_two

STARTS = ("identity", "product", "third_bound", "annealed")
GRID = 256  # quantiles of a point's distances, at most
DISTURBANCE = 0.1  # standard deviation of the logarithms of what entries are multiplied with


def is_matching(a, b):
    """Whether the identity is a coupling."""
    return len(a) == len(b) and bool(((a - b).abs() <= 1e-12).all())


def named_starts(problem, start):
    """[(name, None) or ("given", coupling)] of what a caller gave as `start`; "auto" stays a name."""
    found = []
    for one in _each(start):
        if not isinstance(one, str):
            found.append(("given", _given(problem, one)))
            continue
        if choose("start", one, ("auto", *STARTS)) == "identity" and not is_matching(problem.a, problem.b):
            raise UserError("start 'identity' needs equal numbers of points and equal weights p and q; use 'product'")
        found.append((one, None))
    if not found:
        raise UserError(f"start is empty; allowed: auto, {', '.join(STARTS)}, a coupling")
    return found


def _each(start):
    """The starts in `start`: itself, or the entries of a sequence that is not a coupling's rows of numbers."""
    if isinstance(start, (list, tuple)) and (not start or any(isinstance(s, str) or _axes(s) > 1 for s in start)):
        return start
    return [start]


def _axes(value):
    if isinstance(value, (list, tuple)):
        return 1 + (_axes(value[0]) if value else 0)
    return getattr(value, "ndim", 0)


def _given(problem, coupling):
    coupling = numbers_on("start", coupling, problem.a.device)  # rounded in place below: never the caller's own
    shape = len(problem.a), len(problem.b)
    if tuple(coupling.shape) != shape:
        raise UserError(f"start has shape {tuple(coupling.shape)}; a coupling of shape {shape} is needed")
    bad = torch.nonzero(~(torch.isfinite(coupling) & (coupling >= 0)))
    if len(bad):
        i, j = bad[0].tolist()
        raise UserError(f"start[{i}, {j}] is {coupling[i, j].item():g}; a coupling has finite entries of at least 0")
    error = (coupling.sum(1) - problem.a).abs().sum() + (coupling.sum(0) - problem.b).abs().sum()
    if error > 1e-2:
        raise UserError(f"start's row and column sums miss the weights p and q by {error.item():.3g} in all")
    return round_onto_marginals(coupling, problem.a, problem.b, lambda p: (p.sum(1), p.sum(0)))


def identity(problem):
    return torch.diag(problem.a).to(problem.dtype)


def product(problem):
    return torch.outer(problem.a, problem.b).to(problem.dtype)


def third_bound(problem, c1, c2, exponent):
    """The coupling that is best for Memoli's third lower bound, with the problem's entropy (Memoli 2011, section 6).

    Its cost of matching i with j is the squared 2-Wasserstein distance of their distributions of distances, here over
    common quantiles: in one dimension that is all there is to it. exponent: the problem's unit is 2^exponent.
    """
    count = min(math.lcm(len(c1), len(c2)), GRID)
    levels = (torch.arange(count, dtype=torch.float64, device=c1.device) + 0.5) / count
    one, two = (_quantiles(c, w, levels, exponent) for c, w in ((c1, problem.a), (c2, problem.b)))
    cost = one.square().sum(1)[:, None] + two.square().sum(1) - 2 * (one @ two.T)
    step, coupling = problem.step, torch.zeros_like(problem.step.kernel)
    logs = (cost.neg_() / (count * problem.eps)).to(problem.dtype) - torch.outer(step.r, step.s)
    step.f.zero_(), step.g.zero_()
    step(logs.contiguous(), 1.0, coupling, 1e-4, 1000)
    return coupling


def _quantiles(c, weights, levels, exponent):
    """(n, levels) float64: of each row's entries, over 2^exponent, at `levels` of the mass of `weights`."""
    values, order = c.double().sort(1)
    mass = weights[order].cumsum(1)
    places = torch.searchsorted(mass, levels.expand(len(c), -1).contiguous()).clamp_(max=len(c) - 1)
    return over_power_of_two(values.gather(1, places), exponent)


class Disturbance:
    """Multiplies a coupling's entries with noise that follows the points where they are renamed or the sides swapped.

    Drawn from a generator of its own on the CPU. Row and column of a point's noise are its rank by how far its row of
    the centred costs is from 0; sides are ordered by size and spread. Points of equal rows are told apart by index.
    """

    def __init__(self, problem):
        self.places = [((d.square() @ w.to(d.dtype)).argsort().argsort()) for d, w in problem.sides()]
        sizes = [(len(place), extent) for place, extent in zip(self.places, problem.extents, strict=True)]
        self.transposed = sizes[0] > sizes[1]
        self.draws = 0

    def __call__(self, coupling):
        """The coupling with noise of its own in every call; no longer quite a coupling, which a descent mends."""
        shape = sorted(coupling.shape)
        generator = torch.Generator().manual_seed(self.draws)
        self.draws += 1
        noise = torch.randn(*shape, generator=generator, dtype=torch.float64).mul_(DISTURBANCE).exp_()
        noise = (noise.T if self.transposed else noise).to(coupling.device, coupling.dtype)
        return coupling * noise[self.places[0]][:, self.places[1]]
