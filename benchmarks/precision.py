"""Error of float32 distances by pair separation and geometry, beside the usual torch forms.

For each separation s the pairs are (x_i, x_i + s |x_i| t), t a random unit vector, rounded to float32; the truth is
float64 arithmetic on the rounded rows. p50 is the median and p80 the 80 % quantile of the relative error, `error` the
largest one; a median of 1 means that nothing of the distance is left. The last block does the same for pi minus the
angle of nearly opposite rows.
"""

import math

import numpy as np
import torch

from benchmarks.clouds import language_model_cloud
from benchmarks.distances import arccosh_distances
from benchmarks.schema import Row
from geowidth.geometry import HYPERBOLIC_RADIUS, chord_scale, paired_distances
from geowidth.ops import pairwise_distances

SEPARATIONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def add_arguments(parser):
    parser.add_argument("--pairs", type=int, default=200, help="pairs of each separation (default: %(default)s)")
    parser.add_argument("--d", type=int, default=768, help="columns (default: %(default)s)")


def run(arguments):
    torch.set_num_threads(arguments.threads)
    count = min(arguments.pairs, 50) if arguments.quick else arguments.pairs
    x = torch.from_numpy(language_model_cloud(count, arguments.d, arguments.seed)[0]).float()
    generator = torch.Generator().manual_seed(arguments.seed)
    rows = []
    for separation in SEPARATIONS:
        y = neighbours(x, separation, generator)
        for geometry, provider, form in FORMS:
            truth = paired_distances(x, y, geometry)
            rows.append(row(geometry, provider, separation, form(x, y).double(), truth))
        truth = paired_distances(x, y, "spherical")  # x against -y: pi minus this angle
        for geometry, provider, form in FORMS:
            if geometry == "spherical":
                found = math.pi - form(x, -y).double()
                rows.append(row("opposite", provider, separation, found, truth))
    return rows


def neighbours(x, separation, generator):
    """float32 rows at the given separation, relative to each row's norm, from those of x."""
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    step = separation * x.double().norm(dim=1, keepdim=True) * direction / direction.norm(dim=1, keepdim=True)
    return (x.double() + step).float()


def row(mode, provider, separation, found, truth):
    error = ((found - truth).abs() / truth).nan_to_num(math.inf).numpy()
    quantiles = dict(zip(("p20", "p50", "p80"), map(float, np.quantile(error, [0.2, 0.5, 0.8])), strict=True))
    about = {"op": "distances", "metric": "relative error", "x_name": "separation", "x_value": separation}
    return Row(provider=provider, mode=mode, error=float(error.max()), **about, **quantiles)


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def ours(geometry):
    return lambda x, y: pairwise_distances(x, y, geometry=geometry).diagonal()


def ball_arccosh(x, y):
    return arccosh_distances(torch.cat([x, y]))[: len(x), len(x) :].diagonal()


def gram_arcsinh(x, y):
    chord = (2 - 2 * (unit(x) @ unit(y).T).diagonal()).clamp(min=0).sqrt()
    return 2 * torch.asinh(chord_scale(HYPERBOLIC_RADIUS) * chord)


FORMS = (
    ("raw", "geowidth", ours("raw")),
    ("raw", "torch.cdist", lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist").diagonal()),
    ("spherical", "geowidth", ours("spherical")),
    ("spherical", "torch arccos", lambda x, y: torch.arccos((unit(x) @ unit(y).T).diagonal().clamp(-1, 1))),
    (
        "spherical",
        "torch atan2 of float32 units",
        lambda x, y: 2 * torch.atan2((unit(x) - unit(y)).norm(dim=1), (unit(x) + unit(y)).norm(dim=1)),
    ),
    ("hyperbolic", "geowidth", ours("hyperbolic")),
    ("hyperbolic", "torch arccosh", ball_arccosh),
    ("hyperbolic", "torch Gram + arcsinh", gram_arcsinh),
)
