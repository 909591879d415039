"""Entropic Gromov-Wasserstein and Sinkhorn: closed forms, POT's fixed points, invariances, hostile eps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from geowidth.errors import UserError
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.entropic.reference import entropic_gromov_reference, entropic_objective_reference
from geowidth.ops.gromov.reference import energy_reference
from geowidth.ops.transport.operation import sinkhorn

PLACES = [("cpu", "native"), ("cpu", "torch")]  # devices and backends
if torch.cuda.is_available():
    PLACES += [("cuda", "cuda"), ("cuda", "torch")]
places = pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[1]}-{p[0]}")
TIGHT = {"tolerance": 1e-9, "max_iterations": 3000}


def distances(points):
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def clouds(n, m=None, d=3, noise=0.3, seed=0):
    """Distances of a Gaussian cloud and of a noisy copy of it (or of an unrelated cloud of m points), float64."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = x if m is None else torch.randn(m, d, generator=g, dtype=torch.float64)
    return distances(x), distances(y + noise * torch.randn(y.shape, generator=g, dtype=torch.float64))


def solve(place, c1, c2, **settings):
    """entropic_gromov_wasserstein there; the plan comes back to the CPU."""
    device, backend = place
    result = entropic_gromov_wasserstein(c1.to(device), c2.to(device), backend=backend, **settings)
    assert result.coupling.device.type == device
    return replace(result, coupling=result.coupling.cpu())


def uniform(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def check_coupling(result, a, b):
    plan = result.coupling.double()
    assert torch.isfinite(plan).all() and (plan >= 0).all()
    assert (plan.sum(1) - a).abs().sum() < 2e-7 and (plan.sum(0) - b).abs().sum() < 2e-7
    numbers = [v for v in result.to_json().values() if isinstance(v, float)]
    assert all(map(math.isfinite, numbers)) and result.value >= 0


def fixed_point_residual(c1, c2, plan, eps):
    """How far log T is from 4/eps c1 T c2 + f_i + g_j, the form of every fixed point: |difference|, averaged by T."""
    plan = plan.double()
    form = plan.clamp(min=1e-300).log() - 4 / eps * (c1.double() @ plan @ c2.double())
    n, m = plan.shape
    rows = torch.kron(torch.eye(n, dtype=torch.float64), torch.ones(m, 1, dtype=torch.float64))
    columns = torch.eye(m, dtype=torch.float64).repeat(n, 1)
    design, weight = torch.cat([rows, columns], 1), plan.flatten().sqrt()[:, None]
    fitted = torch.linalg.lstsq(design * weight, form.flatten()[:, None] * weight, driver="gelsd").solution
    return (plan * (form - (design @ fitted).reshape(n, m)).abs()).sum().item()


# ---- closed forms


@places
def test_two_points_with_gaps_one_and_three(place):
    gap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    blurred = solve(place, gap, 3 * gap, eps=1e6)
    assert blurred.value == pytest.approx(3.5, abs=1e-9)
    torch.testing.assert_close(blurred.coupling, torch.full((2, 2), 0.25, dtype=torch.float64), atol=1e-9, rtol=0)
    start = torch.tensor([[0.3, 0.2], [0.2, 0.3]], dtype=torch.float64)
    sharp = solve(place, gap, 3 * gap, eps=1.0, start=start, tolerance=1e-12)
    assert sharp.coupling[0, 0].item() == pytest.approx(0.4987254, abs=1e-7)
    assert sharp.coupling[0, 1].item() == pytest.approx(0.0012746, abs=1e-7)
    assert sharp.value == pytest.approx(2.0152564, abs=1e-6)
    u = 0.9949015
    assert u == pytest.approx(math.tanh(3 * u), abs=1e-7) and sharp.value == pytest.approx(3.5 - 1.5 * u * u, abs=1e-6)


@pytest.mark.parametrize("scale", (3, 31.7))
def test_energy_of_the_identity_on_equal_path_graphs_is_zero(scale):
    i = torch.arange(250)
    c = ((i[:, None] - i).abs() * scale).float()
    value = energy_reference(c, c, torch.eye(250) / 250)
    assert 0 <= value <= 1e-9 * c.max().item() ** 2
    result = entropic_gromov_wasserstein(c, c, eps_rel=1e-6, start="identity")
    assert 0 <= result.value <= 1e-3 * (c.double() ** 2).mean().item()


def test_flat_costs_give_the_product_coupling():
    flat, other = torch.full((5, 5), 2.0), clouds(7)[0].float()
    result = entropic_gromov_wasserstein(flat, other)
    assert result.converged and result.kl == 0 and result.start == "product"
    assert result.value == pytest.approx((other.double() - 2).square().mean().item(), rel=1e-6)
    single = entropic_gromov_wasserstein(torch.zeros(1, 1), torch.zeros(1, 1))
    assert single.value == 0 and single.coupling.item() == 1


# ---- the same fixed points as POT


@pytest.mark.parametrize("eps_rel", (2.0, 1.0, 0.5))
@pytest.mark.parametrize("rank", (0, 8))
@pytest.mark.parametrize("start", ("identity", "product"))
def test_same_fixed_point_as_projected_gradient_descent(eps_rel, rank, start):
    ot = pytest.importorskip("ot")
    n = 40
    c1, c2 = clouds(n, d=8)
    a = uniform(n)
    ours = entropic_gromov_wasserstein(c1, c2, eps_rel=eps_rel, rank=rank, start=start, **TIGHT)
    check_coupling(ours, a, a)
    assert fixed_point_residual(c1, c2, ours.coupling, ours.eps) < 1e-5
    rival = ot.gromov.entropic_gromov_wasserstein(
        c1.numpy(), c2.numpy(), epsilon=ours.eps, G0=torch.diag(a).numpy() if start == "identity" else None,
        max_iter=3000, tol=1e-10, numItermax=5000, stopThr=1e-12, warn=False, symmetric=True,
    )  # fmt: skip
    objective = entropic_objective_reference(c1, c2, torch.from_numpy(rival), ours.eps, a, a)
    assert ours.objective == pytest.approx(objective, rel=1e-5)
    assert np.abs(ours.coupling.numpy() - rival).sum() < 1e-3


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (2, 3), (13, 29), (31, 17)])
@places
def test_any_weights_and_sizes(n, m, place):
    c1, c2 = clouds(n, m)
    g = torch.Generator().manual_seed(5)
    p, q = torch.rand(n, generator=g) + 0.1, torch.rand(m, generator=g) + 0.1
    p, q = p / p.sum(), q / q.sum()
    result = solve(place, c1, c2, eps=0.5, p=p, q=q, **TIGHT)
    a, b = p.double() / p.double().sum(), q.double() / q.double().sum()
    check_coupling(result, a, b)
    step = entropic_gromov_reference(c1, c2, 0.5, a, b, result.coupling, steps=1)
    assert (step - result.coupling).abs().sum() < 1e-7
    assert result.value == pytest.approx(energy_reference(c1, c2, result.coupling), rel=1e-9, abs=1e-12)
    expected = entropic_objective_reference(c1, c2, result.coupling, 0.5, a, b)
    assert result.objective == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("eps_rel", (1.0, 0.3, 0.1))
@pytest.mark.parametrize("n", (67, 256))
@pytest.mark.parametrize("place", PLACES[::2], ids=lambda p: p[0])
def test_float32_with_cheap_products_reaches_the_float64_objective(n, eps_rel, place):
    c1, c2 = clouds(n, d=8)
    c1, c2 = c1.float().double(), c2.float().double()
    exact = entropic_gromov_wasserstein(c1, c2, eps_rel=eps_rel, rank=0, tolerance=1e-6, start="identity")
    fast = solve(place, c1.float(), c2.float(), eps_rel=eps_rel, rank=16, start="identity")
    check_coupling(fast, uniform(n), uniform(n))
    judged = entropic_objective_reference(c1, c2, fast.coupling, fast.eps, uniform(n), uniform(n))
    assert fast.coupling.dtype == torch.float32 and fast.converged
    assert fast.objective == pytest.approx(judged, rel=2e-5)
    assert judged == pytest.approx(exact.objective, rel=3e-5)
    assert fast.exact_products < fast.iterations / 2


# ---- invariances


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_scaling_and_shifting_change_no_plan(dtype):
    c1, c2 = (c.to(dtype) for c in clouds(50))
    settings = {"start": "identity", "tolerance": 1e-5}
    base = entropic_gromov_wasserstein(c1, c2, eps=0.05, **settings)
    close = 2e-4 if dtype == torch.float32 else 1e-6
    scaled = entropic_gromov_wasserstein(1024 * c1, 1024 * c2, eps=0.05 * 1024**2, **settings)
    assert (scaled.coupling - base.coupling).abs().sum() < close
    assert scaled.value == pytest.approx(1024**2 * base.value, rel=1e-4)
    apart = entropic_gromov_wasserstein(1e3 * c1, 1e3 * c2, eps=0.05 * 1e6, **settings)
    assert (apart.coupling - base.coupling).abs().sum() < close
    shifted = entropic_gromov_wasserstein(c1 + 3, c2 + 3, eps=0.05, **settings)
    assert (shifted.coupling - base.coupling).abs().sum() < close
    relative = entropic_gromov_wasserstein(1e3 * c1, c2, eps_rel=base.eps_rel, **settings)
    assert (relative.coupling - base.coupling).abs().sum() < close


def test_relabelling_one_side_relabels_the_plan():
    c1, c2 = clouds(37)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(0))
    base = entropic_gromov_wasserstein(c1, c2, start="product", **TIGHT)
    again = entropic_gromov_wasserstein(c1, c2[order][:, order], start="product", **TIGHT)
    assert (again.coupling - base.coupling[:, order]).abs().sum() < 1e-4


def test_nothing_is_random_and_thread_count_changes_no_bit_of_the_native_step():
    from geowidth.ops.transport.native import NativeStep

    torch.manual_seed(0)
    before = torch.get_rng_state()
    c1, c2 = (c.float() for c in clouds(300))
    first, second = (entropic_gromov_wasserstein(c1, c2, threads=1) for _ in range(2))
    assert torch.equal(first.coupling, second.coupling) and first.to_json() == second.to_json()
    assert torch.equal(torch.get_rng_state(), before)
    for n, m in ((101, 67), (7, 300)):
        x, plans = torch.randn(n, m), []
        for threads in (1, 2, 5):
            a, b = uniform(n).float(), uniform(m).float()
            step = NativeStep(torch.ones(n), torch.arange(m).float() / m, a, b, threads)
            plan = torch.zeros(n, m)
            error, *_ = step(x, 4.0, plan, 1e-5, 500)
            assert error < 1e-5
            plans.append(plan)
        assert torch.equal(plans[0], plans[1]) and torch.equal(plans[0], plans[2])


# ---- hostile input


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("eps_rel", (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e6, 1e30))
def test_no_nan_at_any_eps(eps_rel, dtype):
    c1, c2 = (c.to(dtype) for c in clouds(24))
    for start in ("identity", "product"):
        result = entropic_gromov_wasserstein(c1, c2, eps_rel=eps_rel, start=start, max_iterations=30)
        check_coupling(result, uniform(24), uniform(24))
    if eps_rel >= 1e2:
        assert torch.allclose(result.coupling, torch.full_like(result.coupling, 1 / 576), rtol=1e-1)


def test_an_eps_below_the_floor_is_refused():
    with pytest.raises(UserError, match=r"eps is 1e-10 of the costs' centred spread; at least 1e-09"):
        entropic_gromov_wasserstein(*clouds(5), eps_rel=1e-10)


def test_starts():
    c1, c2 = clouds(30)
    a = uniform(30)
    given = entropic_gromov_wasserstein(c1, c2, eps_rel=0.2).coupling
    again = entropic_gromov_wasserstein(c1, c2, eps_rel=0.2, start=given)
    first = entropic_gromov_wasserstein(c1, c2, eps_rel=0.2)
    assert again.start == "given" and again.objective == pytest.approx(first.objective, rel=1e-4)
    several = entropic_gromov_wasserstein(c1, c2, eps_rel=0.2, start=["product", given.numpy(), "identity"])
    assert several.objective <= (1 + 1e-4) * min(first.objective, again.objective)
    blurred = [entropic_gromov_wasserstein(c1, c2, eps_rel=5.0, start=s).objective for s in ("auto", "product")]
    assert blurred[0] == pytest.approx(blurred[1], rel=1e-4)
    assert entropic_gromov_wasserstein(c1, c2, eps_rel=0.05).start == "identity"
    loose, before = given.T.contiguous().T.mul_(1.0001), 1.0001 * given  # of other strides, and not quite a coupling
    assert entropic_gromov_wasserstein(c1, c2, eps_rel=0.2, start=[loose, "product"]).start == "given"
    assert torch.equal(loose, before)
    wrong = given.clone()
    wrong[0, 0] = -1
    for start, words in (
        (wrong, r"start\[0, 0\] is -1"),
        (given[:5], r"start has shape \(5, 30\)"),
        (given * 1.1, "start's row and column sums miss"),
        ("middle", "allowed: auto, identity, product"),
        ([], "start is empty"),
    ):
        with pytest.raises(UserError, match=words):
            entropic_gromov_wasserstein(c1, c2, start=start)
    with pytest.raises(UserError, match="start 'identity' needs equal"):
        entropic_gromov_wasserstein(c1, c2, q=torch.cat([1.5 * a[:15], 0.5 * a[15:]]), start="identity")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eps": 0}, "eps is 0"),
        ({"eps": math.nan}, "eps is nan"),
        ({"eps_rel": -1}, "eps_rel is -1"),
        ({"p": [0.3, 0.3, 0.3]}, "p sums to 0.9"),
        ({"q": [0.5, -0.5, 1.0]}, r"q\[1\] is -0.5"),
        ({"p": [0.5, 0.5, 0.0]}, r"p\[2\] is 0"),
        ({"q": [0.5, 0.5]}, r"q has shape \(2,\)"),
        ({"p": [0.5, math.nan, 0.5]}, r"p\[1\] is nan"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"rank": -1}, "rank is -1"),
        ({"max_iterations": 2.5}, "max_iterations is 2.5"),
        ({"c1": [[0.0, 1.0], [math.nan, 0.0]]}, r"c1\[1, 0\] is nan"),
        ({"c2": [[0.0, 1.0], [2.0, 0.0]]}, "c2 is not symmetric"),
        ({"c1": torch.zeros(3, 3)}, "c1 is float32 and c2 float64"),
    ],
)
def test_bad_input_is_refused(settings, words):
    c1, c2 = clouds(3)
    settings = {key: torch.tensor(value).double() if key in ("c1", "c2") and isinstance(value, list) else value
                for key, value in settings.items()}  # fmt: skip
    with pytest.raises(UserError, match=words):
        entropic_gromov_wasserstein(settings.pop("c1", c1), settings.pop("c2", c2), **settings)


# ---- Sinkhorn


def transported(place, cost, eps, *weights, **settings):
    """sinkhorn there; its tensors come back to the CPU."""
    device, backend = place
    found = sinkhorn(cost.to(device), eps, *weights, backend=backend, **settings)
    assert found.coupling.device.type == device
    tensors = ("coupling", "row_potential", "column_potential")
    return replace(found, **{name: getattr(found, name).cpu() for name in tensors})


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
@places
def test_sinkhorn_survives_small_eps_and_shifts(dtype, close, place):
    m = torch.tensor([[1000.0, 1001.0], [1001.0, 1000.0]], dtype=dtype)
    usual = transported(place, m, 1.0, tolerance=1e-12)
    diagonal = 0.5 / (1 + math.exp(-1))
    assert diagonal == pytest.approx(0.3655293, abs=1e-7)
    assert usual.coupling[0, 0].item() == pytest.approx(diagonal, abs=close)
    assert usual.coupling[0, 1].item() == pytest.approx(0.5 - diagonal, abs=close)
    assert usual.cost == pytest.approx(1000.2689414, abs=1e-6)
    sharp = transported(place, m, 1e-4)
    assert sharp.coupling.tolist() == [[0.5, 0.0], [0.0, 0.5]] and sharp.converged
    shifted = transported(place, m.double() + 1e6, 1.0, tolerance=1e-12)
    torch.testing.assert_close(shifted.coupling, usual.coupling.double(), atol=close, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (13, 5), (64, 101)])
@pytest.mark.parametrize("eps", (1.0, 0.05))
@places
def test_sinkhorn_matches_pot_and_its_potentials_rebuild_the_plan(shape, eps, place):
    ot = pytest.importorskip("ot")
    g = torch.Generator().manual_seed(1)
    m = torch.rand(shape, generator=g, dtype=torch.float64)
    a, b = (torch.rand(size, generator=g, dtype=torch.float64) + 0.1 for size in shape)
    a, b = a / a.sum(), b / b.sum()
    ours = transported(place, m, eps, a, b, tolerance=1e-12)
    rival = ot.bregman.sinkhorn_log(a.numpy(), b.numpy(), m.numpy(), eps, numItermax=20000, stopThr=1e-13, warn=False)
    assert ours.converged and np.abs(ours.coupling.numpy() - rival).sum() < 1e-8
    rebuilt = ((ours.row_potential[:, None] + ours.column_potential - m) / eps).exp()
    assert (rebuilt - ours.coupling).abs().sum() < 1e-10


@pytest.mark.parametrize("eps", (1e-10, 1e-3, 1e3, 1e300))
@places
def test_sinkhorn_gives_no_nan(eps, place):
    m = torch.rand(19, 23, generator=torch.Generator().manual_seed(2))
    result = transported(place, m, eps, max_iterations=200)
    assert torch.isfinite(result.coupling).all() and (result.coupling.sum(1) - 1 / 19).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.ones(2, 2), 0), "eps is 0"),
        ((torch.tensor([[0.0, math.inf]]), 1), r"cost\[0, 1\] is inf"),
        ((torch.ones(2), 1), r"cost has shape \(2,\)"),
        ((torch.eye(2), 1e-13), "1e-12 of the cost's range"),
        ((torch.ones(2, 2), 1, [0.5, 0.4]), "a sums to 0.9"),
    ],
)
def test_sinkhorn_refuses_bad_input(arguments, words):
    with pytest.raises(UserError, match=words):
        sinkhorn(*arguments)
