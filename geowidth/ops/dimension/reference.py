"""The estimators of intrinsic dimension written down point by point."""

import math

import numpy as np

from geowidth.inputs import ArrayLike


def dimension_reference(distances: ArrayLike, k: int) -> dict[str, float]:
    """{estimator: dimension} of the formulas of `intrinsic_dimension`, for a (N, N) matrix of distinct points."""
    rows = [sorted(float(d) for j, d in enumerate(row) if j != i) for i, row in enumerate(np.asarray(distances))]
    points, ratios = len(rows), sorted(math.log(row[1] / row[0]) for row in rows)
    sums = [sum(math.log(row[k - 1] / row[j]) for j in range(k - 1)) for row in rows]
    used = range(int(points * 0.9))
    levels = [-math.log(1 - (i + 1) / points) for i in used]
    return {
        "twonn_mle": (points - 1) / sum(ratios),
        "twonn_fit": sum(ratios[i] * levels[i] for i in used) / sum(ratios[i] ** 2 for i in used),
        "mle": points * (k - 1) / sum(sums),
        "mle_mean": sum((k - 2) / s for s in sums) / points,
    }
