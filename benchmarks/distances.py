"""Distance matrices of one cloud: GeoWidth's op against torch.cdist, scipy, and the usual three torch passes.

Cloud: float32 rows that behave like residual-stream states (benchmarks/clouds.py), with a duplicate, a near-parallel
row and a near neighbour planted. The error column is the largest relative error of the off-diagonal entries that are
not 0, against float64; what becomes of those that are is in the note.

The bare GEMM (x @ x.T in float32) is timed beside: `ratio` rows are CPU seconds over the GEMM's, within the same round.
Half of the GEMM is the floor of a symmetric matrix by the same arithmetic.
"""

import math

import numpy as np
import torch

from benchmarks.clouds import language_model_cloud
from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.geometry import GEOMETRIES, HYPERBOLIC_RADIUS, chord_scale, reference_distances
from geowidth.ops import pairwise_distances

GEMM = "bare GEMM"
LARGEST_JUDGED = 2048  # rows up to which the float64 reference, and the peers that take seconds, are run


def add_arguments(parser):
    parser.add_argument("--n", type=int, nargs="+", help="rows (default: 512 1024 2048 4096; quick: 512 2048)")
    parser.add_argument("--d", type=int, default=768, help="columns (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each (default: %(default)s)")


def run(arguments):
    torch.set_num_threads(arguments.threads)
    sizes = arguments.n or ([512, 2048] if arguments.quick else [512, 1024, 2048, 4096])
    rounds = min(arguments.rounds, 5) if arguments.quick else arguments.rounds
    rows = []
    for n in sizes:
        rows += measure(cloud(n, arguments.d, arguments.seed), rounds, arguments.threads)
    return rows


def cloud(n, d, seed):
    """float32 (n, d) with planted near pairs."""
    x = torch.from_numpy(language_model_cloud(n, d, seed)[0]).float()
    x[1] = x[0]
    x[2] = x[0] * 1.001
    x[3] = x[4] + 1e-3 * x[5]
    return x


def measure(x, rounds, threads):
    """Rows of every candidate at one size."""
    candidates = {("", GEMM): lambda: x @ x.T, **raw(x), **spherical(x), **hyperbolic(x), **together(x)}
    samples = interleave(candidates, rounds, seconds=20.0)
    truth = {name: reference_distances(x, geometry=name) for name in GEOMETRIES} if len(x) <= LARGEST_JUDGED else None
    rows = []
    for (mode, provider), found in samples.items():
        about = {"op": "distances", "provider": provider, "mode": mode or "gemm", "x_name": "n", "x_value": len(x)}
        about |= {"threads": threads, "error": math.nan, "note": ""}
        if mode and truth:
            about["error"], about["note"] = judge(candidates[mode, provider](), mode, truth)
        for metric in ("wall", "cpu"):
            rows.append(Row(metric=metric, **about, **found.quantiles(metric)))
        if mode:
            rows.append(Row(metric="ratio", **about, **ratio(samples, (mode, provider), ("", GEMM), "cpu")))
    return rows


def judge(found, mode, truth):
    """(largest relative error off the diagonal, what became of pairs at distance 0) of one matrix, or of the three."""
    if mode == "all":
        found = found.values() if isinstance(found, dict) else found
        verdicts = [judge(matrix, name, truth) for matrix, name in zip(found, GEOMETRIES, strict=True)]
        return max(error for error, _ in verdicts), next((note for _, note in verdicts if note), "")
    found, exact = torch.as_tensor(np.asarray(found)).double(), truth[mode]
    zero = exact < 1e-7 * exact.max()  # the diagonal, the duplicate, and for angles the row 1.001 times another
    error = torch.where(zero, 0, (found - exact).abs() / exact).nan_to_num(math.inf)
    if found.isnan().any():
        return float(error.max()), f"{int(found.isnan().sum())} entries are NaN"
    worst = float(found[zero].max())
    return float(error.max()), f"distance 0 comes out as {worst:.1e}" if worst > 1e-6 * float(exact.max()) else ""


def raw(x):
    from scipy.spatial.distance import cdist

    wide = x.double().numpy()
    slow = {
        ("raw", "torch.cdist, exact mode"): lambda: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"),
        ("raw", "scipy cdist, float64"): lambda: cdist(wide, wide),
    }
    return {
        ("raw", "geowidth"): lambda: pairwise_distances(x),
        ("raw", "torch.cdist"): lambda: torch.cdist(x, x),
        ("raw", "torch Gram"): lambda: gram_euclidean(x),
        **(slow if len(x) <= LARGEST_JUDGED else {}),
    }


def spherical(x):
    return {
        ("spherical", "geowidth"): lambda: pairwise_distances(x, geometry="spherical"),
        ("spherical", "torch arccos"): lambda: torch.arccos(cosines(x).clamp_(-1, 1)),
        ("spherical", "torch cdist + arcsine"): lambda: 2 * torch.asin((torch.cdist(*[unit(x)] * 2) / 2).clamp_(max=1)),
    }


def hyperbolic(x):
    return {
        ("hyperbolic", "geowidth"): lambda: pairwise_distances(x, geometry="hyperbolic"),
        ("hyperbolic", "torch arccosh"): lambda: arccosh_distances(x),
        ("hyperbolic", "torch Gram + arcsinh"): lambda: arcsinh_distances(cosines(x)),
    }


def together(x):
    return {
        ("all", "geowidth"): lambda: pairwise_distances(x, geometry="all"),
        ("all", "three torch passes"): lambda: (
            torch.cdist(x, x),
            torch.arccos(cosines(x).clamp_(-1, 1)),
            arccosh_distances(x),
        ),
        ("all", "torch, one Gram matrix"): lambda: from_one_gram(x),
    }


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def cosines(x):
    u = unit(x)
    return u @ u.T


def gram_euclidean(x):
    squares = (x * x).sum(1)
    return torch.addmm(squares[None] + squares[:, None], x, x.T, alpha=-2).clamp_(min=0).sqrt_()


def arccosh_distances(x):
    """The formula most libraries use, on points of the ball."""
    y = HYPERBOLIC_RADIUS * unit(x)
    room = 1 - (y * y).sum(1)
    return torch.acosh(1 + 2 * torch.cdist(y, y).square_() / (room[:, None] * room))


def arcsinh_distances(cosine):
    return 2 * torch.asinh(chord_scale(HYPERBOLIC_RADIUS) * (2 - 2 * cosine).clamp_(min=0).sqrt_())


def from_one_gram(x):
    gram = x @ x.T
    squares = gram.diagonal().clone()
    euclidean = (squares[:, None] + squares - 2 * gram).clamp_(min=0).sqrt_()
    cosine = gram * squares.rsqrt()[:, None] * squares.rsqrt()
    chord = (2 - 2 * cosine).clamp_(min=0).sqrt_()
    return euclidean, 2 * torch.asin((chord / 2).clamp_(max=1)), arcsinh_distances(cosine)
