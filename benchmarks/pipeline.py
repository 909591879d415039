"""The whole measurement, nine signals and intrinsic dimension of every layer, against the same by known libraries.

Ours      geowidth.measure.measure_clouds, as `geowidth measure` runs it
Libraries the best glue of each signal: scipy cdist for distances (float64, angles from chords), POT's exact
          Gromov-Wasserstein solver started at the identity coupling, gudhi's Rips engine with the enclosing radius,
          the exact 2-Wasserstein matching that gudhi runs on POT, scikit-dimension for TwoNN and MLE

Clouds: a randomly initialised nano model; with --clouds FILE, those that `geowidth measure --save-clouds FILE` kept
(a trained model, SmolLM2). With --layers both are timed on some layers only and scaled to all, which the notes say.
"""

import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.geometry import HYPERBOLIC_RADIUS


def add_arguments(parser):
    parser.add_argument("--clouds", nargs="*", type=Path, default=[], help="files of saved clouds")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the random model's cloud")
    parser.add_argument("--layers", type=int, help="time this many layers and scale (default: all of them)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")


def run(arguments):
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.tokens, arguments.rounds, arguments.layers = 128, 1, 1
    rows = []
    for name, clouds in _clouds(arguments):
        rows += _race(name, clouds, arguments)
    return rows


def _clouds(arguments):
    """(name, Clouds) of everything to be measured."""
    from geowidth.measure import Clouds, capture
    from geowidth.models import TaperedTransformer
    from geowidth.models.presets import PRESETS
    from geowidth.text.corpus import load_corpus

    model = TaperedTransformer(PRESETS["nano"].model, seed=arguments.seed)
    yield "random nano", capture(model, load_corpus("stdlib").test, arguments.tokens, seed=arguments.seed)
    for path in arguments.clouds:
        yield path.stem, Clouds.read(path)


def _race(name, clouds, arguments):
    """Rows of one set of clouds: seconds of both for all layers, their ratio, the largest difference of a signal."""
    from geowidth.measure import measure_clouds

    count = min(arguments.layers or clouds.layers, clouds.layers)
    layers = np.unique(np.linspace(0, clouds.layers - 1, count).astype(int)).tolist()
    part = _some_layers(clouds, layers)
    candidates = {
        "geowidth": lambda: measure_clouds(part, threads=arguments.threads),
        "libraries": lambda: _library_layers(part, arguments.threads),
    }
    samples = interleave(candidates, rounds=arguments.rounds, warmup=1, keep=True)
    difference = _largest_difference(samples["geowidth"].result, samples["libraries"].result)
    scale = clouds.layers / part.layers
    common = {"op": "pipeline", "x_name": "n", "x_value": clouds.tokens, "threads": arguments.threads}
    note = f"{clouds.layers} layers" + (f", timed on {count} and scaled" if count < clouds.layers else "")
    rows = []
    for provider, sample in samples.items():
        for metric in ("wall", "cpu"):
            times = {key: value * scale for key, value in sample.quantiles(metric).items()}
            rows.append(Row(provider=provider, mode=name, metric=metric, note=note, **times, **common))
    for metric in ("wall", "cpu"):
        quotient = ratio(samples, "libraries", "geowidth", metric)
        words = f"libraries over geowidth, {metric}"
        rows.append(
            Row(provider="ratio", mode=name, metric="ratio", error=difference, note=words, **quotient, **common)
        )
    return rows


def _library_layers(clouds, threads):
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads):
        return [library_layer(clouds.before[i], clouds.after[i]) for i in range(clouds.layers)]


def _some_layers(clouds, layers):
    from geowidth.measure import Clouds

    widths = tuple(clouds.widths[i] for i in layers)
    rest = (clouds.token_ids, clouds.positions, widths, clouds.projections, clouds.settings)
    return Clouds(clouds.before[layers], clouds.after[layers], *rest)


def _largest_difference(profile, layers):
    """Largest relative difference of shift and topology (gw may be lower: ours never stops above the library's)."""
    worst = 0.0
    for geometry, statistics in profile.work.items():
        for name in ("shift", "topology"):
            for ours, theirs in zip(statistics[name], (layer[geometry][name] for layer in layers), strict=True):
                worst = max(worst, abs(ours - theirs) / max(abs(theirs), 1e-300))
        for ours, theirs in zip(statistics["gw"], (layer[geometry]["gw"] for layer in layers), strict=True):
            worst = max(worst, (ours - theirs) / max(abs(theirs), 1e-300))
    return worst


def library_layer(before, after):
    """{geometry: {statistic: value}, "dimension": {...}} of one layer by scipy, POT, gudhi and scikit-dimension."""
    import skdim

    x, y = before.double().numpy(), after.double().numpy()
    sides = [_library_distances(x), _library_distances(y)]
    moved = _library_shift(x, y)
    result = {}
    for geometry in sides[0]:
        c1, c2 = sides[0][geometry], sides[1][geometry]
        result[geometry] = {"shift": moved[geometry], "gw": _library_gw(c1, c2), "topology": _library_topology(c1, c2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dimension = {
            "twonn": skdim.id.TwoNN().fit(x).dimension_,
            "mle": skdim.id.MLE(K=20).fit(x).dimension_,
        }
    return {**result, "dimension": dimension}


def _library_distances(x):
    from scipy.spatial.distance import cdist

    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    chord = cdist(unit, unit)
    factor = HYPERBOLIC_RADIUS / (1 - HYPERBOLIC_RADIUS**2)
    return {
        "raw": cdist(x, x),
        "spherical": 2 * np.arcsin(np.minimum(chord / 2, 1)),
        "hyperbolic": 2 * np.arcsinh(factor * chord),
    }


def _library_shift(x, y):
    chord = np.linalg.norm(
        x / np.linalg.norm(x, axis=1, keepdims=True) - y / np.linalg.norm(y, axis=1, keepdims=True), axis=1
    )
    factor = HYPERBOLIC_RADIUS / (1 - HYPERBOLIC_RADIUS**2)
    return {
        "raw": np.linalg.norm(x - y, axis=1).mean(),
        "spherical": (2 * np.arcsin(np.minimum(chord / 2, 1))).mean(),
        "hyperbolic": (2 * np.arcsinh(factor * chord)).mean(),
    }


def _library_gw(c1, c2):
    import ot

    n = len(c1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = ot.gromov.gromov_wasserstein2(c1, c2, G0=np.eye(n) / n, symmetric=True)
    return float(np.sqrt(max(value, 0.0)))


def _library_topology(c1, c2):
    from gudhi.wasserstein import wasserstein_distance

    diagrams = [_library_diagram(c) for c in (c1, c2)]
    return float(wasserstein_distance(*diagrams, order=2.0, internal_p=np.inf))


def _library_diagram(distances):
    from gudhi.sklearn import RipsPersistence

    radius = float(distances.max(1).min())
    rips = RipsPersistence(
        homology_dimensions=1, input_type="full distance matrix", threshold=radius, homology_coeff_field=2, n_jobs=1
    )
    diagram = rips.fit_transform([distances])[0]
    return diagram[np.isfinite(diagram).all(1)]
