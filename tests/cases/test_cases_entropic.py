"""Entropic Gromov-Wasserstein and Sinkhorn: saddles, starts, weights and costs at the ends of the number ranges."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from geowidth import cli
from geowidth.errors import UserError
from geowidth.ops.entropic.curvature import Curvature
from geowidth.ops.entropic.descent import EntropicProblem, Side, round_onto_marginals
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.entropic.reference import entropic_objective_reference
from geowidth.ops.gromov.reference import energy_reference
from geowidth.ops.transport.operation import sinkhorn
from geowidth.ops.transport.torch import TorchStep

BACKENDS = ("native", "torch")
both = pytest.mark.parametrize("backend", BACKENDS)


def distances(points):
    points = torch.as_tensor(points, dtype=torch.float64)
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def permuted(costs, seed):
    order = torch.randperm(len(costs), generator=torch.Generator().manual_seed(seed))
    return costs[order][:, order].contiguous()


def cycle(n):
    i = torch.arange(n)
    step = (i[:, None] - i).abs()
    return torch.minimum(step, n - step).double()


def bipartite(n):
    """Adjacency of K_n,n."""
    side = torch.arange(2 * n) < n
    return (side[:, None] != side).double()


def paths(n):
    """Path distances in K_n,n: 1 between the sides, 2 within."""
    return 2 * (1 - torch.eye(2 * n, dtype=torch.float64)) - bipartite(n)


def cube():
    """Path distances in the graph of the cube."""
    i = torch.arange(8)
    bits = i[:, None] ^ i
    return sum((bits >> k) & 1 for k in range(3)).double()


def triangles():
    """Two equal triangles at a distance."""
    one = np.array([[0, 0], [1, 0], [0.5, math.sqrt(0.75)]])
    return distances(np.concatenate([one, one + [10, 0]]))


def gap_and_copies(jitter=0.0):
    """Two points with gap 2, and six on the same places, three each."""
    places = np.repeat([0.0, 2.0], 3) + jitter * np.random.default_rng(0).standard_normal(6)
    return distances([[0.0], [2.0]]), distances(places[:, None])


def check_minimum(c1, c2, result):
    """No negative curvature."""
    least = dense_least(c1, c2, result.coupling.double(), result.eps)
    assert least >= -1.1e-3 * result.eps, f"curvature {least:g} at eps {result.eps:g}"


def dense_least(c1, c2, plan, eps):
    """The least second variation of the objective on directions that keep the marginals, over sum X^2 / T."""
    n, m = plan.shape
    rows, columns = torch.eye(n, dtype=torch.float64), torch.eye(m, dtype=torch.float64)
    sums = torch.cat([torch.kron(rows, torch.ones(1, m)), torch.kron(torch.ones(1, n), columns)])
    root = plan.flatten().sqrt()
    _, singular, basis = torch.linalg.svd(sums * root)
    basis = basis[int((singular > 1e-10).sum()) :].T * root[:, None]
    quadratic = -4 * torch.kron(c1.double(), c2.double())
    form = basis.T @ quadratic @ basis + eps * torch.eye(basis.shape[1], dtype=torch.float64)
    return torch.linalg.eigvalsh((form + form.T) / 2)[0].item()


# ---- H3: starts and saddles


def test_H3_a_cloud_against_itself_renamed_is_matched():
    for seed in range(8):
        costs = distances(np.random.default_rng(seed).standard_normal((20, 3)))
        found = entropic_gromov_wasserstein(costs, permuted(costs, seed), eps_rel=0.01)
        assert found.converged and found.objective <= 1.001 * found.eps * math.log(20), seed


def test_H3_squared_distances_in_reverse_order_are_as_low_as_pot():
    ot = pytest.importorskip("ot")
    higher = 0
    for seed in range(6):
        costs = distances(np.random.default_rng(seed).standard_normal((20, 2))) ** 2
        costs /= costs.max()
        turned = costs.flip(0, 1).contiguous()
        ours = entropic_gromov_wasserstein(costs, turned, eps=5e-4)
        if seed < 3:
            plan = ot.gromov.entropic_gromov_wasserstein(
                costs.numpy(), turned.numpy(), epsilon=5e-4, max_iter=200, tol=1e-7, warn=False
            )
            a = torch.full((20,), 0.05, dtype=torch.float64)
            rival = entropic_objective_reference(costs, turned, torch.from_numpy(plan), 5e-4, a, a)
            higher += ours.objective > 1.0005 * rival
        assert ours.value < 5e-4, seed
    assert higher <= 1


@both
@pytest.mark.parametrize("start", ("auto", "product"))
@pytest.mark.parametrize("eps_rel", (0.1, 0.01))
def test_H3_bipartite_graphs_renamed_leave_the_saddle(eps_rel, start, backend):
    for costs in (bipartite(4), 2 * (1 - torch.eye(8, dtype=torch.float64)) - bipartite(4)):
        other = permuted(costs, 3)
        found = entropic_gromov_wasserstein(costs, other, eps_rel=eps_rel, start=start, backend=backend)
        assert found.converged and found.value < 1e-6
        check_minimum(costs, other, found)


@both
def test_H3_cycles_of_six_and_twelve(backend):
    for n in (6, 12):
        found = entropic_gromov_wasserstein(cycle(n), permuted(cycle(n), 1), eps_rel=0.01, backend=backend)
        assert found.converged and found.value < 1e-6
    found = entropic_gromov_wasserstein(cycle(6), cycle(12), eps_rel=0.01, backend=backend)
    assert found.converged and found.value < 3.17  # the product coupling: 6.33
    check_minimum(cycle(6), cycle(12), found)


def test_H3_auto_is_no_higher_than_any_of_its_starts():
    for seed in range(4):
        random = np.random.default_rng(seed)
        c1, c2 = (distances(random.standard_normal((16, 3))) for _ in range(2))
        ends = {
            start: entropic_gromov_wasserstein(c1, c2, eps_rel=0.02, start=start).objective
            for start in ("auto", "identity", "product", "third_bound", "annealed")
        }
        assert ends.pop("auto") <= (1 + 1e-4) * min(ends.values())


@pytest.mark.parametrize("start", ("identity", "product", "auto"))
@pytest.mark.parametrize(
    "costs", [paths(4), paths(3), bipartite(3), cycle(6), cycle(8), cycle(12), cube(), triangles()],
    ids=["K4,4", "K3,3", "K3,3 adjacency", "C6", "C8", "C12", "cube", "triangles"],
)  # fmt: skip
def test_H3_what_converged_from_any_start_is_a_minimum(costs, start):
    for seed, eps_rel in itertools.product((1, 3), (0.1, 0.01)):
        other = permuted(costs, seed)
        found = entropic_gromov_wasserstein(costs, other, eps_rel=eps_rel, start=start)
        assert found.converged
        check_minimum(costs, other, found)
        if start == "auto":  # as low as the renaming itself
            assert found.objective <= found.eps * math.log(len(costs)) * (1 + 1e-3)


def test_H3_path_distances_of_bipartite_graphs_leave_the_saddle_that_a_disturbance_does_not():
    sizes = itertools.product((3, 4, 5, 10), (1, 3), ("native",))  # of 20 points Lanczos' iteration tells
    for n, seed, backend in (*sizes, (4, 3, "torch")):
        other = permuted(paths(n), seed)
        found = entropic_gromov_wasserstein(paths(n), other, eps_rel=0.01, start="identity", backend=backend)
        assert found.converged, (n, seed)
        check_minimum(paths(n), other, found)


def test_H3_permuted_duplicates_are_minima_and_no_higher_than_any_start():
    places = np.random.default_rng(0).standard_normal((4, 2))
    costs = distances(np.repeat(places, 3, 0))
    for seed in (1, 2, 3):
        other = permuted(costs, seed)
        for start in ("identity", "product", "auto"):
            found = entropic_gromov_wasserstein(costs, other, eps_rel=0.01, start=start)
            assert found.converged
            check_minimum(costs, other, found)
        assert found.value < 1e-6


def test_H3_least_curvature_agrees_with_the_dense_second_variation():
    random = np.random.default_rng(0)
    c1, c2 = (distances(random.standard_normal((n, 2))) for n in (19, 17))
    a, b = (torch.from_numpy(random.dirichlet(np.full(n, 3.0))) for n in (19, 17))
    problem = EntropicProblem(Side(c1, a), Side(c2, b), a, b, 0.3, torch.float64, TorchStep, 1)
    noise = torch.from_numpy(random.standard_normal((19, 17)))
    for plan in (torch.outer(a, b), entropic_gromov_wasserstein(c1, c2, eps=0.3, p=a, q=b).coupling):
        least, direction = Curvature(problem, plan).least(noise)
        assert least == pytest.approx(dense_least(c1, c2, plan, 0.3) / 0.3, rel=1e-4, abs=1e-4)
        assert direction.sum(0).abs().max() < 1e-12 and direction.sum(1).abs().max() < 1e-12
        along = 0.3 * (direction**2 / plan).sum() - 4 * ((c1 @ direction @ c2) * direction).sum()
        assert along / (direction**2 / plan).sum() / 0.3 == pytest.approx(least, rel=1e-3, abs=1e-4)


# ---- H3: no end above a start


def oscillating():
    """Matrices that are no metrics, 2 points each, on which whole mirror steps go up and down."""
    one = torch.tensor([[1.295, -1.053], [-1.053, -0.397]], dtype=torch.float64)
    other = torch.tensor([[0.0, 30.8], [30.8, 0.0]], dtype=torch.float64)
    return one, other, torch.tensor([0.5, 0.5]).double(), torch.tensor([0.5143, 0.4857]).double()


@pytest.mark.parametrize(
    ("start", "backend"),
    [("auto", "native"), ("product", "native"), ("annealed", "native"), (["identity", "product"], "native"),
     ("product", "torch")],
)  # fmt: skip
def test_H3_no_end_is_above_the_product_coupling(start, backend):
    c1, c2, p, q = oscillating()
    if "identity" in start:
        p = q
    product = energy_reference(c1, c2, torch.outer(p, q))
    for eps_rel in (0.001, 0.005, 0.02, 0.1) if backend == "native" else (0.005,):
        found = entropic_gromov_wasserstein(c1, c2, p=p, q=q, eps_rel=eps_rel, start=start, backend=backend)
        assert found.objective <= product * (1 + 1e-12)
        assert found.value == pytest.approx(energy_reference(c1, c2, found.coupling), rel=1e-9)
        assert math.isfinite(found.change)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
@pytest.mark.parametrize("iterations", (1, 3, 300))
def test_H3_no_end_is_above_its_own_start(iterations, dtype):
    rounding = 1e-12 if dtype == torch.float64 else 1e-6
    for seed in range(12):
        random = np.random.default_rng(seed)
        n, m = (5, 5) if seed % 2 else (4, 6)
        c1, c2 = (torch.from_numpy(c + c.T).to(dtype) for c in (random.standard_normal((k, k)) for k in (n, m)))
        p = torch.from_numpy(random.dirichlet(np.ones(n))).clamp(min=1e-3)
        p, q = p / p.sum(), None if m != n else p / p.sum()
        full_q = torch.full((m,), 1 / m).double() if q is None else q
        given = torch.from_numpy(random.random((n, m)))
        given = round_onto_marginals(given / given.sum(), p, full_q, lambda t: (t.sum(1), t.sum(0)))
        starts = {"product": torch.outer(p, full_q), "plan": given} | ({"identity": torch.diag(p)} if n == m else {})
        for name, plan in starts.items():
            start = given if name == "plan" else name
            found = entropic_gromov_wasserstein(c1, c2, p=p, q=q, eps_rel=0.01, start=start, max_iterations=iterations)
            highest = entropic_objective_reference(c1, c2, plan, found.eps, p, full_q)
            scale = (c1.double().square().mean() + c2.double().square().mean()).item()
            assert found.objective <= highest + rounding * scale, (seed, name)


def test_H3_weights_of_a_thousandth_beside_others():
    p = torch.tensor([1e-3, 0.333, 0.333, 0.333]).double()
    p = p / p.sum()
    costs = distances(np.random.default_rng(1).standard_normal((4, 2)))
    for eps_rel, start in itertools.product((0.1, 0.01), ("auto", "identity", "product")):
        found = entropic_gromov_wasserstein(costs, costs, p=p, q=p, eps_rel=eps_rel, start=start)
        check_minimum(costs, costs, found)
        assert found.converged and found.objective <= energy_reference(costs, costs, torch.outer(p, p))
        if start != "product":
            assert found.objective <= -found.eps * (p @ p.log()).item() * (1 + 1e-9)


# ---- N18: unequal sizes and weights


@both
def test_N18_one_point_against_three_has_a_forced_plan(backend):
    other = distances([[0.0], [1.0], [3.0]])
    found = entropic_gromov_wasserstein(
        torch.zeros(1, 1).double(),
        other,
        eps=0.1,
        q=torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        backend=backend,
    )
    expected = 2 * (0.5 * 0.3 * 1 + 0.5 * 0.2 * 9 + 0.3 * 0.2 * 4)
    assert found.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("eps_rel", "jitter", "backend"),
    [(0.1, 0.0, "native"), (0.1, 0.0, "torch"), (0.01, 1e-3, "native"), (0.001, 0.0, "native")],
)
def test_N18_two_points_against_six_copies(eps_rel, jitter, backend):
    pair, copies = gap_and_copies(jitter)
    for c1, c2 in ((pair, copies), (copies, pair)):
        found = entropic_gromov_wasserstein(c1, c2, eps_rel=eps_rel, backend=backend)
        assert found.converged and found.objective <= math.log(2) * found.eps * 1.001 + 10 * jitter**2


def test_N18_bipartite_graphs_of_eight_and_six_points():
    for start in ("auto", "product"):
        found = entropic_gromov_wasserstein(bipartite(4), bipartite(3), eps_rel=0.01, start=start)
        assert found.converged and found.value < 1e-6 and found.objective <= 1.001 * math.log(2) * found.eps


def test_N18_six_points_with_two_weight_vectors():
    _, copies = gap_and_copies()
    p, q = torch.full((6,), 1 / 6).double(), torch.tensor([1, 2, 3, 3, 2, 1]).double() / 12
    found = entropic_gromov_wasserstein(copies, copies, eps_rel=0.01, p=p, q=q)
    assert found.converged and found.value < 1e-6


def test_N18_seven_against_eleven_swapped_renamed_and_disturbed():
    random = np.random.default_rng(0)
    c1, c2 = (distances(random.standard_normal((n, 3))) for n in (7, 11))
    for eps_rel in (0.1, 0.03):
        found = entropic_gromov_wasserstein(c1, c2, eps_rel=eps_rel)
        assert found.value == pytest.approx(energy_reference(c1, c2, found.coupling), rel=1e-9)
        others = [entropic_gromov_wasserstein(c2, c1, eps_rel=eps_rel)]
        others += [entropic_gromov_wasserstein(permuted(c1, s), permuted(c2, s + 9), eps_rel=eps_rel) for s in (1, 2)]
        for other in others:
            assert other.objective == pytest.approx(found.objective, rel=1e-3)
    a, b = (torch.full((n,), 1 / n, dtype=torch.float64) for n in (7, 11))
    start = torch.outer(a, b)
    noise = torch.rand(7, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ends = [
        entropic_gromov_wasserstein(c1, c2, eps_rel=0.1, start=start * (1 + size * noise)).objective
        for size in (0, 1e-12, 1e-6)
    ]
    assert ends == pytest.approx([ends[0]] * 3, rel=1e-3)


# ---- costs at the ends of the range


@both
@pytest.mark.parametrize("scale", (1e160, 1e-150, 1e100))
def test_N18_costs_of_any_scale_give_the_same_plan(scale, backend):
    random = np.random.default_rng(0)
    c1, c2 = (distances(random.standard_normal((n, 3))) for n in (7, 11))
    exponent = math.frexp(scale)[1]
    if abs(exponent) > 511:
        with pytest.raises(UserError, match="beyond the range of float64"):
            entropic_gromov_wasserstein(c1 * scale, c2 * scale, backend=backend)
        return
    factor = 2.0**exponent
    base = entropic_gromov_wasserstein(c1, c2, backend=backend)
    found = entropic_gromov_wasserstein(c1 * factor, c2 * factor, backend=backend)
    assert (found.coupling - base.coupling).abs().sum() < 1e-6 and found.value == pytest.approx(base.value * factor**2)


def test_float32_costs_whose_squares_overflow_are_scaled():
    c1, c2 = distances(np.random.default_rng(0).standard_normal((9, 3))), None
    c2 = permuted(c1, 1)
    base = entropic_gromov_wasserstein(c1.float(), c2.float())
    found = entropic_gromov_wasserstein(c1.float() * 2.0**80, c2.float() * 2.0**80)
    assert found.objective == pytest.approx(base.objective * 2.0**160, rel=1e-5)


# ---- H1: weights at the ends of the range


@both
@pytest.mark.parametrize("least", (1e-10, 1e-38, 1e-45, 1e-100, 5e-324))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_H1_tiny_weights_count_for_little_or_are_refused(dtype, least, backend):
    costs = distances([[0.0], [1.0], [3.0]]).to(dtype)
    p = torch.tensor([0.5, 0.5, least], dtype=torch.float64)
    calls = [
        lambda: entropic_gromov_wasserstein(costs, 3 * costs, eps=0.5, p=p, backend=backend),
        lambda: sinkhorn(costs, 0.5, p, max_iterations=300, backend=backend),
    ]
    two = entropic_gromov_wasserstein(costs[:2, :2], 3 * costs, eps=0.5, p=p[:2])
    for call in calls:
        if least < 1e-150:
            with pytest.raises(UserError, match=r"\[2\] is"):
                call()
            continue
        found = call()
        assert torch.isfinite(found.coupling).all()
        if hasattr(found, "value"):
            assert found.value == pytest.approx(two.value, rel=1e-3)
            assert found.value == pytest.approx(energy_reference(costs, 3 * costs, found.coupling), rel=1e-4)


def test_H1_three_flat_points_and_a_weight_below_float32():
    costs = 1 - torch.eye(3)
    found = [
        entropic_gromov_wasserstein(costs, 3 * costs, p=torch.tensor([0.5, 0.5, 1e-38]), backend=backend)
        for backend in BACKENDS
    ]
    assert found[0].value == pytest.approx(found[1].value, rel=1e-4) and found[0].value > 1
    assert all(torch.isfinite(one.coupling).all() for one in found)


@pytest.mark.parametrize(
    ("cost", "eps"),
    [
        ([[1.7e308, -1.7e308], [-1.7e308, 1.7e308]], 1.0),
        ([[0.0, 1e-310], [1e-310, 0.0]], 1e-320),
        ([[0.0, 1.0], [1.0, 0.0]], 1e308),
    ],
)
def test_H1_sinkhorn_at_the_ends_of_the_range_is_finite_or_refused(cost, eps):
    with pytest.raises(UserError):
        sinkhorn(torch.tensor(cost, dtype=torch.float64), eps)


# ---- B2, B4


@both
def test_B2_the_value_of_a_blurred_plan_is_the_product_couplings(backend):
    gap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    for eps in (1e6, 1e12, 1e300):
        found = entropic_gromov_wasserstein(gap, 3 * gap, eps=eps, backend=backend)
        assert found.value == pytest.approx(3.5, abs=1e-9) and found.converged


@both
def test_B4_shifts_and_scales_change_no_plan(backend):
    cost = torch.tensor([[1000.0, 1001.0], [1001.0, 1000.0]], dtype=torch.float64)
    base = sinkhorn(cost, 1.0, backend=backend).coupling
    assert base[0, 0].item() == pytest.approx(0.5 / (1 + math.exp(-1)), abs=1e-9)
    for other, eps in ((cost + 1e6, 1.0), (cost * 1e3, 1e3), (cost + torch.tensor([[7.0], [-3.0]]), 1.0)):
        assert torch.allclose(sinkhorn(other, eps, backend=backend).coupling, base, atol=1e-9)
    random = np.random.default_rng(3)
    c1, c2 = (distances(random.standard_normal((12, 3))) for _ in range(2))
    plan = entropic_gromov_wasserstein(c1, c2, eps=0.3).coupling
    scaled = entropic_gromov_wasserstein(1e3 * c1, 1e3 * c2, eps=0.3e6).coupling
    assert (plan - scaled).abs().sum() < 1e-3


# ---- H6: not converged is said


@pytest.mark.parametrize("count", (0, -1, True, 2.5, None, "5"))
def test_H6_iteration_counts_that_are_none_are_refused(count):
    cost = torch.eye(3, dtype=torch.float64)
    with pytest.raises(UserError, match="max_iterations"):
        sinkhorn(cost, 1.0, max_iterations=count)
    with pytest.raises(UserError, match="max_iterations"):
        entropic_gromov_wasserstein(cost, cost, max_iterations=count)


def test_H6_the_command_says_what_did_not_converge(tmp_path, capsys):
    random = np.random.default_rng(0)
    files = []
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", distances(random.standard_normal((12, 3))).numpy())
        files.append(str(tmp_path / f"{name}.npy"))
    assert cli.main(["gromov", *files, "--entropic", "--eps-rel", "1e-7"]) == 0
    said = capsys.readouterr()
    converged = json.loads(said.out)["converged"]
    assert said.err.count("\n") == (0 if converged else 1) and ("not converged" in said.err) == (not converged)
    assert not converged


def test_H6_the_report_names_layers_that_did_not_converge():
    from geowidth.artifacts.work_profile import not_converged
    from geowidth.report.facts import method_facts

    details = [{"raw": {"gw_entropic": {"converged": layer != 1}}, "bands": None} for layer in range(3)]
    assert not_converged(details) == {("gw_entropic", "raw"): [1]}
    assert any("did not converge in layer 1" in note for note in method_facts({"details": details}))
    assert not_converged([{"raw": {"gw_entropic": {"converged": True}}}]) == {}
