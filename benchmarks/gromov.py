"""Gromov-Wasserstein against POT and ott-jax: seconds, with the objective that each reached judged alike in float64.

entropic    eps relative to the squared mean distance; every plan is rounded onto the couplings before it is judged, so
            wrong marginals earn nothing. error = relative excess over the lowest objective of the run.
statistic   value, certificate and improvement against POT's exact conditional gradient from the product coupling (its
            default) and from the identity.
CPU seconds of this process are the figure to compare (one thread each).
"""

import warnings

import numpy as np
import torch

from benchmarks.clouds import language_model_cloud
from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.ops.distances.operation import pairwise_distances
from geowidth.ops.entropic.descent import round_onto_marginals
from geowidth.ops.entropic.operation import entropic_gromov_wasserstein
from geowidth.ops.entropic.reference import entropic_objective_reference
from geowidth.ops.gromov.operation import gromov_wasserstein
from geowidth.ops.gromov.reference import energy_reference

TIGHT_POT = {"tol": 1e-6, "symmetric": True, "numItermax": 100, "stopThr": 1e-7}


def add_arguments(parser):
    parser.add_argument("--n", type=int, nargs="+", help="numbers of points (default: 256 512 1024 2048)")
    parser.add_argument("--eps", type=float, nargs="+", default=[1e-2], help="eps over squared mean distance")
    parser.add_argument("--dimension", type=int, default=768, help="dimension of the cloud (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--cap", type=float, default=60, help="a provider past so many seconds sits out further rounds")
    parser.add_argument("--only", choices=("entropic", "statistic"), help="one of the two tasks")


def run(arguments):
    torch.set_num_threads(arguments.threads)
    sizes = arguments.n or ([128, 256] if arguments.quick else [256, 512, 1024, 2048])
    rows = []
    for n in sizes:
        c1, c2 = problem(n, arguments.dimension, arguments.seed)
        if arguments.only != "statistic":
            for eps in arguments.eps:
                rows += entropic_rows(c1, c2, eps, arguments)
        if arguments.only != "entropic":
            rows += statistic_rows(c1, c2, arguments)
    return rows


def problem(n, dimension, seed):
    """Raw distances of a cloud before and after a residual FFN, over the first's mean: float64 (n, n) numpy."""
    clouds = language_model_cloud(n, dimension, seed)
    c1, c2 = (pairwise_distances(torch.from_numpy(c), geometry="raw") for c in clouds)
    scale = c1.mean()
    return (c1 / scale).numpy(), (c2 / scale).numpy()


def entropic_rows(c1, c2, eps, arguments):
    samples = timed(entropic_providers(c1, c2, eps), arguments)
    exact = torch.from_numpy(c1), torch.from_numpy(c2)
    objectives = {name: judged(*exact, s.result, eps) for name, s in samples.items()}
    return rows_of(samples, objectives, f"entropic, eps {eps:g}", len(c1), arguments)


def judged(c1, c2, plan, eps):
    """The float64 objective of a plan, rounded onto uniform marginals."""
    plan = torch.as_tensor(np.array(plan, dtype=np.float64))
    uniform = torch.full((len(plan),), 1 / len(plan), dtype=torch.float64)
    plan = round_onto_marginals(plan, uniform, uniform, lambda p: (p.sum(1), p.sum(0)))
    return entropic_objective_reference(c1, c2, plan, eps, uniform, uniform)


def entropic_providers(c1, c2, eps):
    import ot

    single = torch.from_numpy(c1).float(), torch.from_numpy(c2).float()
    n = len(c1)
    blurred_identity = 0.999 * np.eye(n) / n + 0.001 / n**2
    solve = ot.gromov.entropic_gromov_wasserstein
    providers = {
        "geowidth": lambda: entropic_gromov_wasserstein(*single, eps=eps).coupling,
        "geowidth, tolerance 1e-3": lambda: entropic_gromov_wasserstein(*single, eps=eps, tolerance=1e-3).coupling,
        "POT": lambda: solve(c1, c2, epsilon=eps),
        "POT, tuned, identity": lambda: solve(c1, c2, epsilon=eps, G0=blurred_identity, **TIGHT_POT),
    }
    return providers | ott_providers(c1, c2, eps)


def ott_providers(c1, c2, eps):
    """ott-jax as it comes, and at its best (warm start, identity), compiled before it is timed; {} if not installed."""
    try:
        import jax
        import jax.numpy as jnp
        from ott.geometry import geometry
        from ott.initializers.quadratic import initializers
        from ott.problems.quadratic import quadratic_problem
        from ott.solvers.linear import sinkhorn
        from ott.solvers.quadratic import gromov_wasserstein as solver
    except ImportError as error:
        print(f"ott-jax is left out: {error}")
        return {}
    a, b = jnp.asarray(c1, jnp.float32), jnp.asarray(c2, jnp.float32)

    def provider(threshold, inner_threshold, warm, iterations, identity):
        start = initializers.QuadraticInitializer(init_coupling=jnp.eye(len(c1)) / len(c1)) if identity else None
        inner = sinkhorn.Sinkhorn(threshold=inner_threshold, max_iterations=2000)
        # Its linearised cost is half of POT's, hence eps / 2 for the same problem.
        outer = solver.GromovWasserstein(
            linear_solver=inner, epsilon=eps / 2, warm_start=warm, threshold=threshold, max_iterations=iterations,
            store_inner_errors=False, initializer=start,
        )  # fmt: skip

        @jax.jit
        def compiled(a, b):
            x, y = geometry.Geometry(cost_matrix=a), geometry.Geometry(cost_matrix=b)
            return outer(quadratic_problem.QuadraticProblem(x, y)).matrix

        compiled(a, b).block_until_ready()
        return lambda: np.asarray(compiled(a, b).block_until_ready())

    return {
        "ott-jax, warm, identity": provider(1e-3, 1e-3, True, 50, True),
        "ott-jax, tight, warm, identity": provider(1e-6, 1e-5, True, 100, True),
    }


def statistic_rows(c1, c2, arguments):
    import ot

    n = len(c1)
    exact = torch.from_numpy(c1), torch.from_numpy(c2)
    plain = ot.gromov.gromov_wasserstein
    samples = timed(
        {
            "geowidth": lambda: gromov_wasserstein(*exact).coupling().numpy(),
            "POT": lambda: plain(c1, c2),
            "POT, identity": lambda: plain(c1, c2, G0=np.eye(n) / n),
        },
        arguments,
    )
    values = {name: energy_reference(*exact, torch.as_tensor(np.asarray(s.result))) for name, s in samples.items()}
    return rows_of(samples, values, "statistic", n, arguments)


def timed(providers, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return interleave(providers, rounds=arguments.rounds, warmup=0, seconds=arguments.cap, keep=True)


def rows_of(samples, objectives, mode, n, arguments):
    """Rows of CPU and wall seconds, and of the ratio to geowidth's CPU seconds."""
    lowest = min(objectives.values())
    rows = []
    for name, found in samples.items():
        common = {"x_name": "n", "x_value": n, "objective": objectives[name], "threads": arguments.threads}
        common["error"] = objectives[name] / lowest - 1
        for metric in ("cpu", "wall"):
            rows.append(Row("gromov", name, mode, metric, **found.quantiles(metric), **common))
        if name != "geowidth":
            rows.append(Row("gromov", name, mode, "ratio", **ratio(samples, name, "geowidth", "cpu"), **common))
    return rows
