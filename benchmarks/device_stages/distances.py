"""Distance matrices on a GPU: every backend and dtype against float64, then time over the bare product's."""

import itertools

import torch

from benchmarks.device_stages.session import median, poison, quantiles, race
from benchmarks.distances import arccosh_distances, cosines, from_one_gram
from geowidth.geometry import GEOMETRIES, reference_distances
from geowidth.ops import pairwise_distances

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TOLERANCE = {torch.float64: 1e-12}  # others: float32 results, within 1e-6
GOAL = 1.3  # times the bare product, for all three matrices


def clouds(session, n, m, d, dtype, seed=0):
    """(x, y) off-centre, with duplicates, near-duplicates, scaled and opposite rows where there is room."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(size, d, generator=generator, dtype=torch.float64) + 3.0 for size in (n, m))
    if n > 6:
        x[2], x[3], x[4] = x[1], 1.001 * x[1], -2 * x[1]
        x[5] = x[1] + 1e-3 * x[6]
    y[0] = x[0]
    return x.to(session.device, dtype), y.to(session.device, dtype)


def correctness(session):
    """All geometries at prime sizes, symmetric and not, on every backend and dtype."""
    sizes = session.pick(((1, 1, 1), (67, 13, 29), (521, 131, 769), (1021, 257, 101)), ((13, 7, 5), (37, 31, 11)))
    before, count = len(session.wrong), 0
    for backend, dtype in itertools.product(session.serving("pairwise_distances"), DTYPES):
        try:
            for n, m, d in sizes:
                x, y = clouds(session, n, m, d, dtype)
                for other in (None, y):
                    _judge(session, backend, x, other)
                    count += 1
        except Exception as failure:
            session.failed(f"distances, {backend}, {dtype}, {n}x{m}x{d}", failure)
    session.note(f"distances: {count} clouds checked, {len(session.wrong) - before} results wrong")


def _judge(session, backend, x, y):
    poison(session)
    with torch.no_grad():
        found = pairwise_distances(x, y, geometry="all", backend=backend)
    kind = "symmetric" if y is None else "rectangular"
    for name in GEOMETRIES:
        truth = reference_distances(x, y, name)
        matrix = found[name].double()
        tiny = truth <= 1e-7 * truth.max()  # equal or parallel to rounding: judged against the largest instead
        error = torch.where(
            tiny, (matrix - truth).abs() / truth.max().clamp(min=1e-30) / 1e3, (matrix / truth - 1).abs()
        )
        worst = float(error.max()) if not error.isnan().any() else float("nan")
        if y is None and not bool((matrix.diagonal() == 0).all() and (matrix == matrix.T).all()):
            worst = float("inf")
        mode = f"{name}, {kind}, {str(x.dtype).removeprefix('torch.')}"
        session.judge("distances", backend, mode, len(x), worst, TOLERANCE.get(x.dtype, 1e-6))


def timings(session):
    """All three matrices of one cloud: each backend, torch.cdist and the usual passes, the bare product beside."""
    sizes = session.pick(((8192, 4096), (2048, 768), (8192, 768)), ((64, 32),))
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        for n, d in sizes:
            if session.left() < 60 and not session.rehearse:
                return session.note(f"distances: stopped before {dtype} n={n} d={d}, out of time")
            _time(session, clouds(session, n, 1, d, dtype)[0])


def _time(session, x):
    n, d = x.shape
    wide = x if x.dtype == torch.float64 else x.float()
    calls = {"bare product": lambda: x @ x.T, "bare product, float64": lambda: wide.double() @ wide.double().T}
    for backend in session.serving("pairwise_distances"):
        calls[backend] = lambda b=backend: pairwise_distances(x, geometry="all", backend=b)
    calls["torch, three passes"] = lambda: (
        torch.cdist(wide, wide),
        torch.arccos(cosines(wide).clamp_(-1, 1)),
        arccosh_distances(wide),
    )
    calls["torch, one Gram matrix"] = lambda: from_one_gram(wide)
    with torch.no_grad():
        times = race(session, calls)
    dtype = str(x.dtype).removeprefix("torch.")
    for name, values in times.items():
        session.add("distances", name, f"all, {dtype}, d={d}", "wall", "n", n, **quantiles(values))
    if "cuda" not in times:
        return
    ours = median(times["cuda"])
    over = {name: ours / median(values) for name, values in times.items()}
    session.add(
        "distances",
        "cuda",
        f"all, {dtype}, d={d}",
        "ratio",
        "n",
        n,
        p50=over["bare product"],
        note="over the bare product",
    )
    floor = 3 * n * n * wide.element_size() / session.ceilings.get("copy", float("nan")) * 1.0
    session.note(
        f"distances: all three, {dtype}, n={n}, d={d}: {ours * 1e3:.3f} ms, {over['bare product']:.2f} of the bare "
        f"product (goal {GOAL}), {over.get('torch, three passes', float('nan')):.3f} of three torch passes; "
        f"writing alone takes {floor * 1e3:.3f} ms"
    )
