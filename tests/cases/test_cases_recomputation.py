"""Every op's result computed again, plainly and in float64, from what the op returns.

Small random inputs, ugly ones among them (random_inputs.py): 2,000 an op, a third of that for entropic Gromov-
Wasserstein, a tenth for the plain torch backends. GEOWIDTH_RANDOM_INPUTS=20000 sets another number.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from distance_oracle import assert_accurate
from random_inputs import (
    cost_pair,
    degree_one_bars,
    diagram,
    distance_matrix,
    energy,
    gap,
    generators,
    points,
    weights,
)
from scipy.optimize import linear_sum_assignment
from scipy.special import erfc, expit

from geowidth.errors import UserError
from geowidth.measure import diagram_distance, diagram_matching, intrinsic_dimension, persistence_diagram
from geowidth.ops import (
    activate,
    assignment,
    entropic_gromov_wasserstein,
    ffn,
    gromov_wasserstein,
    pairwise_distances,
    sinkhorn,
)

BACKENDS = ("native", "torch")


def assert_coupling(plan, a, b, tolerance):
    assert (plan >= 0).all()
    assert plan.sum(1) == pytest.approx(a, rel=tolerance, abs=tolerance * a.mean())
    assert plan.sum(0) == pytest.approx(b, rel=tolerance, abs=tolerance * b.mean())


@pytest.mark.parametrize("backend", BACKENDS)
def test_gromov_wasserstein(backend):
    for g in generators(backend):
        n = int(g.integers(1, 7))
        a, b = cost_pair(g, n)
        found = gromov_wasserstein(a, b, backend=backend, threads=1)
        a, b = a.astype(float), b.astype(float)
        plan, identity, product = found.coupling().numpy(), np.eye(n) / n, np.full((n, n), 1 / n**2)
        largest = max(np.abs(a).max(), np.abs(b).max())
        uneven = max(np.abs(c - c.T).max() for c in (a, b)) ** 2
        rounding, of_means = 1e-12 * largest**2, 1e-15 * largest * math.sqrt(found.value) + uneven
        assert_coupling(plan, product.sum(1), product.sum(0), 1e-13)
        assert found.value == pytest.approx(energy(a, b, plan), rel=1e-11, abs=of_means)
        assert found.gw == math.sqrt(found.value)
        assert found.identity == pytest.approx(energy(a, b, identity), rel=1e-12)
        assert found.value <= found.identity * (1 + 1e-12)
        assert found.scale + found.eccentricity + found.shape == pytest.approx(found.value, rel=1e-9, abs=rounding)
        assert min(found.scale, found.eccentricity, found.shape) >= 0
        others = [energy(a, b, np.eye(n)[g.permutation(n)] / n) for _ in range(3)] + [energy(a, b, product)]
        assert 0 <= found.lower <= min(found.value, *others) * (1 + 1e-12)
        assert found.gap == pytest.approx(max(0, gap(a, b, plan)), abs=rounding)
        assert found.identity_gap == pytest.approx(max(0, gap(a, b, identity)), abs=rounding)
        assert not found.converged or found.gap <= 1e-6 * found.value + rounding


@pytest.mark.parametrize("backend", BACKENDS)
def test_entropic_gromov_wasserstein(backend):
    for g in generators(backend, share=3 if backend == "native" else 50):  # searches take their time
        n, m = (int(k) for k in g.integers(2, 6, 2))
        m = n if g.random() < 0.5 else m
        a, b = cost_pair(g, n, None if m == n else m)
        (p, full_p), (q, full_q) = weights(g, n), weights(g, m)
        eps_rel = float(g.choice((0.005, 0.05, 0.1, 1.0, 10.0)))
        wide = [c.astype(float) for c in (a, b)]
        product = energy(*wide, np.outer(full_p, full_q))
        try:
            found = entropic_gromov_wasserstein(a, b, eps_rel=eps_rel, p=p, q=q, backend=backend, threads=1)
        except UserError as error:
            assert "eps_rel has no meaning here" in str(error)
            continue
        plan = found.coupling.numpy().astype(float)
        tolerance = 1e-10 if found.coupling.dtype == torch.float64 else 3e-5
        assert np.isfinite(plan).all()
        assert_coupling(plan, full_p, full_q, tolerance)
        scale = sum((w @ c**2 @ w) for c, w in zip(wide, (full_p, full_q), strict=True))
        assert found.value == pytest.approx(energy(*wide, plan), rel=tolerance, abs=tolerance * scale)
        ratio = plan / np.outer(full_p, full_q)
        kl = float((plan * np.log(np.where(plan > 0, ratio, 1))).sum())
        assert found.kl == pytest.approx(kl, rel=tolerance, abs=tolerance)
        assert found.objective == pytest.approx(found.value + found.eps * found.kl, rel=1e-12, abs=1e-300)
        single = a.dtype == np.float32
        rounding = (1e-6 if single else 1e-12) * (
            scale + found.eps
        )  # scale: float32 costs are symmetric up to rounding
        assert found.objective <= product + rounding
        if n == m and np.array_equal(full_p, full_q):
            kl = -(full_p @ np.log(full_p))
            assert found.objective <= energy(*wide, np.diag(full_p)) + found.eps * kl + rounding
        assert found.gw == math.sqrt(found.value) and math.isfinite(found.change)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinkhorn(backend):
    for g in generators(backend):
        n, m = (int(k) for k in g.integers(1, 7, 2))
        cost = (g.standard_normal((n, m)) * 10.0 ** g.uniform(-12, 12)).astype(g.choice((np.float32, np.float64)))
        if g.random() < 0.3:
            cost = np.round(cost / np.abs(cost).max()).astype(cost.dtype)
        eps = float(max(np.ptp(cost), 1e-30) * g.choice((0.02, 0.1, 1.0, 50.0)))
        (a, full_a), (b, full_b) = weights(g, n), weights(g, m)
        found = sinkhorn(cost, eps, a, b, backend=backend, threads=1)
        cost, plan = cost.astype(float), found.coupling.numpy().astype(float)
        tolerance = 1e-9 if found.coupling.dtype == torch.float64 else 1e-6
        exponents = (found.row_potential.numpy()[:, None] + found.column_potential.numpy() - cost) / eps
        rounding = 1e-15 * np.abs(cost).max() / eps
        assert plan == pytest.approx(np.exp(exponents), rel=tolerance + 10 * rounding, abs=1e-44)
        assert found.cost == pytest.approx((cost * plan).sum(), abs=tolerance * (np.abs(cost) * plan).sum())
        assert plan.sum(1) == pytest.approx(full_a, rel=tolerance + 10 * rounding)
        error = np.abs(plan.sum(0) - full_b).sum()
        assert found.marginal_error == pytest.approx(error, abs=tolerance + 10 * rounding)
        assert found.converged == (found.marginal_error <= 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assignment(backend):
    for g in generators(backend):
        n = int(g.integers(1, 8))
        cost = g.standard_normal((n, n)) if g.random() < 0.5 else g.integers(-1, 3, (n, n)).astype(float)
        cost = np.where(g.random((n, n)) < g.choice((0, 0.3)), 1e9, cost) * 10.0 ** g.uniform(-12, 12)
        start, duals = g.permutation(n), 10.0 ** g.uniform(-12, 30) * g.standard_normal(n)
        found = assignment(cost, start=start, column_dual=duals, backend=backend)
        column, least = found.column.numpy(), cost[linear_sum_assignment(cost)]
        assert sorted(column) == list(range(n))
        size = np.abs(least).sum()
        assert found.cost == pytest.approx(cost[np.arange(n), column].sum(), rel=1e-13, abs=1e-14 * size)
        assert found.cost == pytest.approx(least.sum(), abs=1e-12 * size)
        u, v = found.row_dual.numpy(), found.column_dual.numpy()
        assert found.bound == pytest.approx(u.sum() + v.sum(), abs=1e-14 * (np.abs(u).sum() + np.abs(v).sum()))
        assert found.bound == pytest.approx(found.cost, abs=1e-11 * size)
        assert (cost - u[:, None] - v >= -1e-14 * np.abs(cost).max()).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_pairwise_distances(backend):
    for g in generators(backend):
        d, dtype = int(g.integers(1, 6)), g.choice((np.float32, np.float64))
        x, y = (points(g, int(n), d) + g.choice((0, 3)) + 0.01 for n in g.integers(1, 7, 2))
        scale = 10.0 ** g.uniform(-12, 12)
        x, y = (torch.from_numpy((rows * scale).astype(dtype)) for rows in (x, y))
        tolerance = 2e-6 if dtype == np.float32 else 1e-12
        for geometry, found in pairwise_distances(x, y, geometry="all", backend=backend, threads=1).items():
            assert found.dtype == x.dtype
            assert_accurate(found.numpy(), x.numpy(), y.numpy(), geometry, tolerance)
        for found in pairwise_distances(x, geometry="all", backend=backend, threads=1).values():
            assert torch.equal(found, found.T) and not found.diagonal().any()


def test_persistence_diagram():
    for g in generators():
        distances = distance_matrix(g, int(g.integers(1, 7)))
        np.testing.assert_array_equal(persistence_diagram(distances), degree_one_bars(distances))


@pytest.mark.parametrize("ground", ("sup", "euclidean"))
def test_diagram_distance(ground):
    order = math.inf if ground == "sup" else 2
    for g in generators():
        a, scale = diagram(g), 10.0 ** g.uniform(-12, 12)
        b = a[g.permutation(len(a))] + g.choice((0, 1e-9, 1e-2)) if g.random() < 0.3 else diagram(g)
        a, b = a * scale, b * scale
        found = diagram_matching(a, b, ground=ground)
        assert diagram_distance(a, b, ground=ground) == found.distance
        for side, bars in enumerate((a, b)):
            assert sorted(k for k in found.pairs[:, side] if k >= 0) == list(range(len(bars)))
        for (i, j), length in zip(found.pairs, found.lengths, strict=True):
            expected = to_diagonal((a[i] if j < 0 else b[j]), ground)
            if min(i, j) >= 0:
                assert np.isinf(a[i, 1]) == np.isinf(b[j, 1])
                kept = slice(1 if np.isinf(a[i, 1]) else 2)
                expected = np.linalg.norm(a[i, kept] - b[j, kept], order)
            assert length == pytest.approx(expected, rel=1e-13)
        assert found.distance == pytest.approx(np.linalg.norm(found.lengths), rel=1e-12)
        assert found.distance == pytest.approx(assignment_distance(a, b, ground), rel=1e-9)


def to_diagonal(bar, ground):
    return (bar[1] - bar[0]) / (2 if ground == "sup" else math.sqrt(2))


def assignment_distance(a, b, ground):
    """scipy's assignment on the square problem of the finite bars, beside the sorted bars that never die."""
    endless = [np.sort(d[np.isinf(d[:, 1]), 0]) for d in (a, b)]
    if len(endless[0]) != len(endless[1]):
        return math.inf
    a, b = (d[np.isfinite(d[:, 1])] for d in (a, b))
    moved = np.abs(a[:, None] - b)
    square = np.zeros((len(a) + len(b),) * 2)
    square[: len(a), : len(b)] = (moved.max(-1, initial=0) if ground == "sup" else np.hypot(*moved.T).T) ** 2
    square[: len(a), len(b) :] = np.array([to_diagonal(bar, ground) ** 2 for bar in a])[:, None]
    square[len(a) :, : len(b)] = np.array([to_diagonal(bar, ground) ** 2 for bar in b])
    return math.hypot(math.sqrt(square[linear_sum_assignment(square)].sum()), *(endless[0] - endless[1]))


def test_a_distance_of_diagrams_beyond_float64_is_refused():
    largest = 1.7e308
    assert diagram_distance([(-largest, largest)], []) == largest
    for a, b in (([(0.0, largest)] * 9, []), ([(largest, math.inf)], [(-largest, math.inf)])):
        with pytest.raises(UserError, match="the distance of diagrams a and b is more than float64 holds"):
            diagram_distance(a, b)


def test_intrinsic_dimension():
    for g in generators():
        rows = g.standard_normal((int(g.integers(5, 12)), 3)) * 10.0 ** g.uniform(-12, 12)
        rows = np.concatenate([rows, rows[: g.integers(0, 3)]])
        distances = np.linalg.norm(rows[:, None] - rows, axis=-1)
        k = int(g.integers(3, 5))
        found = intrinsic_dimension(distances, k=k)
        kept = [i for i in range(len(rows)) if not (rows[:i] == rows[i]).all(1).any()]
        near = [sorted(math.dist(rows[i], rows[j]) for j in kept if j != i) for i in kept]
        assert (found.k, found.points, found.merged) == (k, len(kept), len(rows) - len(kept))
        assert found.values == pytest.approx(dimensions(near, k), rel=1e-9)


def dimensions(near, k):
    """The four estimates from sorted distances to all others, as documented."""
    n = len(near)
    ratios = sorted(math.log(row[1] / row[0]) for row in near)
    used = ratios[: int(n * 0.9)]
    levels = [-math.log1p(-(i + 1) / n) for i in range(len(used))]
    sums = [sum(math.log(row[k - 1] / row[j]) for j in range(k - 1)) for row in near]
    return {
        "twonn_mle": (n - 1) / sum(ratios),
        "twonn_fit": sum(map(math.prod, zip(used, levels, strict=True))) / sum(x * x for x in used),
        "mle": n * (k - 1) / sum(sums),
        "mle_mean": sum((k - 2) / s for s in sums) / n,
    }


FORMULAS = {
    "silu": lambda x: x * expit(x),
    "gelu": lambda x: x * erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}


def hidden(gate, up, name):
    return FORMULAS[GATED[name]](gate) * up if gate is not None else FORMULAS[name](up)


def activations():
    return itertools.cycle([*FORMULAS, *GATED])


def draw(g, *shape, dtype):
    """Normal numbers, tiny and large ones among them, as `dtype`; and the same in float64."""
    numbers = torch.from_numpy(g.standard_normal(shape) * g.choice((1e-12, 1.0, 1.0, 8.0), shape)).to(dtype)
    return numbers, numbers.double().numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_activate(backend):
    for g, name in zip(generators(backend), activations(), strict=False):
        dtype = g.choice((torch.float32, torch.float64))
        shape = tuple(g.integers(0, 6, 2))
        (gate, wide_gate), (up, wide_up) = (draw(g, *shape, dtype=dtype) for _ in range(2))
        if name in FORMULAS:
            gate = wide_gate = None
        expected = hidden(wide_gate, wide_up, name)
        found = activate(gate, up, name, backend=backend).numpy()
        rounding = 1e-6 if dtype == torch.float32 else 1e-14
        assert (np.abs(found - expected) <= rounding * (1 + np.abs(wide_up)) * (1 + np.abs(expected))).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ffn(backend):
    for g, name in zip(generators(backend), activations(), strict=False):
        dtype = g.choice((torch.float32, torch.float64))
        tokens, d, width = (int(k) for k in g.integers(1, 6, 3))
        x, gate, up, down = (draw(g, *shape, dtype=dtype) for shape in ((tokens, d), *[(width, d)] * 3))
        biases = [draw(g, size, dtype=dtype) for size in (width, width, d)]
        gated, typed, wide = name in GATED, [], []
        for t, side in ((typed, 0), (wide, 1)):
            t += [x[side], gate[side] if gated else None, up[side], down[side]]
        words = ("gate_bias", "up_bias", "down_bias") if gated else ("up_bias", "down_bias")
        named = {w: b[0] for w, b in zip(words, biases if gated else biases[1:], strict=True)}
        found = ffn(*typed, name, **named, backend=backend).numpy()
        upward = wide[0] @ wide[2].T + biases[1][1]
        inner = hidden(wide[0] @ wide[1].T + biases[0][1] if gated else None, upward, name)
        expected = inner @ wide[3] + biases[2][1]
        size = np.abs(inner) @ np.abs(wide[3]) + np.abs(biases[2][1]) + 1
        tolerance = 1e-4 if dtype == torch.float32 else 1e-12
        assert (np.abs(found - expected) <= tolerance * size * max(1, np.abs(expected).max())).all()
