"""Degree-one persistence diagrams and their 2-Wasserstein distance: GeoWidth against the libraries in use.

Diagrams ("rips" modes) of clustered clouds that behave like residual-stream states and of isotropic ones, in spherical
and hyperbolic geometry; with --distances, of given matrices. Peers, each at its best settings for a full matrix:
redzed-tda; gudhi's ripser in single precision (its fastest) up to the enclosing radius; ripser; giotto-ph, one thread.
Distances ("w2" modes) between the diagrams of a cloud before and after an FFN, of two isotropic clouds, and synthetic
ones. Peers: hera at 1 % relative error, and POT's exact solver, both as gudhi wraps them.

A `ratio` row is a peer's CPU seconds over GeoWidth's in the same round. `objective` is the diagram's total persistence,
or the distance; `error` its relative difference from GeoWidth's, which the tests hold to gudhi's and scipy's float64
answers. A peer sits out a size that, by its growth so far, would take longer than --limit.
"""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks.clouds import isotropic_cloud, language_model_cloud
from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.measure import diagram_distance, persistence_diagram
from geowidth.ops import pairwise_distances

OURS = "geowidth"
CLOUDS = ("clustered", "isotropic")


def add_arguments(parser):
    parser.add_argument("--n", type=int, nargs="+", help="points (default: 256 512 1024 2048; quick: 256 512)")
    parser.add_argument(
        "--d", type=int, nargs="+", default=[64, 768], help="dimensions of the clouds (default: 64 768)"
    )
    parser.add_argument("--clouds", nargs="*", choices=CLOUDS, default=CLOUDS, help="synthetic clouds (default: both)")
    parser.add_argument("--bars", type=int, nargs="+", help="bars of a synthetic diagram (default: 300 1000 2000 5000)")
    parser.add_argument(
        "--distances", type=Path, nargs="+", default=[], help=".npy files of (n, n) or (k, n, n) matrices"
    )
    parser.add_argument("--only", choices=("rips", "w2"), help="one half of the benchmark")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds a call may take (default: %(default)s)")


def run(arguments):
    torch.set_num_threads(arguments.threads)
    rounds = min(arguments.rounds, 3) if arguments.quick else arguments.rounds
    limit = min(arguments.limit, 1.0) if arguments.quick else arguments.limit
    rows = []
    if arguments.only != "w2":
        for mode, sizes in rips_problems(arguments):
            rows += sweep(mode, sizes, rips_candidates, total_persistence, rounds, limit, 16)
    if arguments.only != "rips":
        for mode, sizes in w2_problems(arguments):
            rows += sweep(mode, sizes, w2_candidates, float, rounds, limit, 8)
    return rows


# ---------------------------------------------------------------- what is measured


def rips_problems(arguments):
    """(mode, [(n, function that makes a stack of matrices)]) of every sweep."""
    sizes = arguments.n or ([256, 512] if arguments.quick else [256, 512, 1024, 2048])
    for path in arguments.distances:
        stack = np.load(path)
        stack = stack[None] if stack.ndim == 2 else stack
        n = stack.shape[-1]
        parts = [(k, lambda k=k, s=stack: np.array(s[:, :k, :k], np.float64)) for k in (n // 4, n // 2, n)]
        yield f"rips {path.stem}, {len(stack)} clouds", parts
    for cloud in arguments.clouds:
        for d in arguments.d[: 1 if arguments.quick else None]:
            for geometry in ("spherical", "hyperbolic") if cloud == "clustered" else ("spherical",):
                yield (
                    f"rips {cloud} d={d} {geometry}",
                    [(n, lambda n=n, c=cloud, d=d, g=geometry: matrix(c, n, d, g, arguments.seed)) for n in sizes],
                )


def matrix(cloud, n, d, geometry, seed):
    points = language_model_cloud(n, d, seed)[0] if cloud == "clustered" else isotropic_cloud(n, d, seed)
    return spread(points, geometry)[None]


def spread(points, geometry):
    return pairwise_distances(torch.from_numpy(points), geometry=geometry).numpy()


def w2_problems(arguments):
    bars = arguments.bars or ([300, 1000] if arguments.quick else [300, 1000, 2000, 5000])
    sizes = [512] if arguments.quick else [512, 1024, 2048]
    for ground in ("sup", "euclidean"):
        yield f"w2 synthetic {ground}", [(n, lambda n=n, g=ground: (*synthetic_diagrams(n), g)) for n in bars]
        for cloud in arguments.clouds:
            for d in arguments.d[: 1 if arguments.quick else None]:
                yield (
                    f"w2 {cloud} d={d} {ground}",
                    [
                        (n, lambda n=n, c=cloud, d=d, g=ground: (*cloud_diagrams(c, n, d, arguments.seed), g))
                        for n in (sizes if cloud == "clustered" else [n // 2 for n in sizes])
                    ],
                )


def synthetic_diagrams(n):
    """Diagrams of n and 0.9 n bars: births spread about 1, short bars, one in fifty six times as long."""
    generator = np.random.default_rng(n)
    diagrams = []
    for size in (n, int(0.9 * n)):
        births = generator.normal(1, 0.12, size)
        lengths = generator.exponential(0.02, size) * np.where(generator.random(size) < 0.02, 6, 1)
        diagrams.append(np.stack([births, births + lengths], 1))
    return diagrams


def cloud_diagrams(cloud, n, d, seed):
    """Of a clustered cloud before and after an FFN; of two isotropic ones, whose diagrams are eight times as large."""
    if cloud == "clustered":
        clouds = language_model_cloud(n, d, seed)
    else:
        clouds = [isotropic_cloud(n, d, seed + k) for k in range(2)]
    return [persistence_diagram(spread(x, "spherical")) for x in clouds]


# ---------------------------------------------------------------- who computes it


def rips_candidates(stack):
    """{provider: function without arguments -> bars of all matrices}; what is not installed is None."""
    providers = {
        OURS: persistence_diagram,
        "redzed-tda": when("redzed_tda", redzed),
        "gudhi float32": when("gudhi", gudhi_ripser),
        "ripser": when("ripser", ripser),
        "giotto-ph": when("gph", giotto),
    }
    return {name: f and (lambda f=f: np.concatenate([bars(f(m)) for m in stack])) for name, f in providers.items()}


def bars(found):
    return np.asarray(found, float).reshape(-1, 2)


def when(module, function):
    return function if find_spec(module) else None


def redzed(distances):
    import redzed_tda

    return redzed_tda.rips(distances, maxdim=1)[1]


def gudhi_ripser(distances):
    from gudhi._ripser_ext import _full

    radius = distances.max(1).min()
    single = np.ascontiguousarray(distances, np.float32)
    return _full(single, max_dimension=1, max_edge_length=float(np.float32(radius)), homology_coeff_field=2)[1]


def ripser(distances):
    from ripser import ripser as rips

    return rips(distances, distance_matrix=True, maxdim=1)["dgms"][1]


def giotto(distances):
    from gph import ripser_parallel

    return ripser_parallel(distances, metric="precomputed", maxdim=1, n_threads=1)["dgms"][1]


def w2_candidates(problem):
    a, b, ground = problem
    inner = math.inf if ground == "sup" else 2.0
    return {
        OURS: lambda: diagram_distance(a, b, ground=ground),
        "hera": when("gudhi", lambda: hera(a, b, inner)),
        "POT": when("gudhi", lambda: pot(a, b, inner)),
    }


def hera(a, b, inner):
    from gudhi.hera import wasserstein_distance

    return wasserstein_distance(a, b, order=2.0, internal_p=inner)


def pot(a, b, inner):
    from gudhi.wasserstein import wasserstein_distance

    return wasserstein_distance(a, b, order=2.0, internal_p=inner)


def total_persistence(diagram):
    length = diagram[:, 1] - diagram[:, 0]
    return float(length[np.isfinite(length)].sum())


# ---------------------------------------------------------------- sweeps


def sweep(mode, sizes, candidates_of, value_of, rounds, limit, growth):
    """Rows of one mode. A peer sits out a size that would take it over `limit` seconds, were it `growth` times as slow
    at twice the n."""
    last, rows = {}, []
    for n, make in sizes:
        candidates = candidates_of(make())
        notes = {name: "not installed" for name, function in candidates.items() if function is None}
        for name, (before, seconds) in last.items():
            if name != OURS and seconds * growth ** math.log2(n / before) > limit:
                notes[name] = f"over {limit:g} s expected"
        running = {name: function for name, function in candidates.items() if name not in notes}
        samples = interleave(running, rounds, warmup=0 if last else 1, seconds=limit / 2, keep=True)
        last.update({name: (n, found.quantiles("cpu")["p50"]) for name, found in samples.items()})
        rows += size_rows(mode, n, samples, value_of)
        rows += [Row("topology", name, mode, "cpu", "n", n, note=note) for name, note in notes.items()]
    return rows


def size_rows(mode, n, samples, value_of):
    ours = value_of(samples[OURS].result)
    rows = []
    for name, found in samples.items():
        value = value_of(found.result)
        about = {"objective": value, "error": abs(value - ours) / ours if ours else math.nan}
        for metric in ("wall", "cpu"):
            rows.append(Row("topology", name, mode, metric, "n", n, **found.quantiles(metric), **about))
        if name != OURS:
            rows.append(Row("topology", name, mode, "ratio", "n", n, **ratio(samples, name, OURS, "cpu"), **about))
    return rows
