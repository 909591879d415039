"""Intrinsic dimension of a cloud from its distance matrix: TwoNN and Levina and Bickel's MLE, two forms of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from geowidth import inputs
from geowidth.errors import UserError, choose_several, flag, shown, whole
from geowidth.inputs import ArrayLike
from geowidth.ops.backend import Backend, Operation
from geowidth.ops.dimension.estimators import ESTIMATORS, estimates
from geowidth.ops.dimension.reference import dimension_reference
from geowidth.ops.matrices import check_distances, square_matrix
from geowidth.precision import Precision, epsilon

MERGED_WITHIN = 4  # units in the last place


@dataclass(frozen=True)
class DimensionResult:
    """Estimates of intrinsic dimension and what they were computed from.

    values: estimator -> dimension. k: neighbours used by "mle" and "mle_mean". points: how many, after merging.
    merged: how many points were left out as repetitions of another.
    """

    values: dict[str, float]
    k: int
    points: int
    merged: int

    def to_json(self) -> dict[str, Any]:
        """A plain dict for a result file."""
        return {"values": dict(self.values), "k": self.k, "points": self.points, "merged": self.merged}


def intrinsic_dimension(
    distances: ArrayLike,
    *,
    k: int = 20,
    estimators: str | Sequence[str] = ESTIMATORS,
    validate: bool = True,
    rounding: ArrayLike | None = None,
    backend: str | None = None,
) -> DimensionResult:
    """Intrinsic dimension of the points behind a distance matrix, each repeated point counted once.

    With r1 <= r2 a point's two nearest distances, mu = r2 / r1, T_j its j-th nearest distance and
    S = sum_{j<k} log(T_k / T_j), over N points:

        twonn_mle  (N - 1) / sum log mu, the unbiased maximum likelihood of the ratios' Pareto law
        twonn_fit  slope through the origin of -log(1 - i/N) on the i-th smallest log mu, i = 1 .. floor(0.9 N)
                   (Facco, d'Errico, Rodriguez and Laio, Scientific Reports 7, 2017)
        mle        N (k - 1) / sum S: inverses pooled (MacKay and Ghahramani 2005)
        mle_mean   mean of (k - 2) / S (Levina and Bickel, NeurIPS 2004, in its unbiased form)

    Args:
        distances: (n, n) numpy array or tensor: symmetric, non-negative, finite, zero on the diagonal.
        k: neighbours for "mle" (at least 2) and "mle_mean" (at least 3).
        estimators: names out of `ESTIMATORS`, at least one.
        validate: False skips the checks of the entries, for a matrix known to be in order.
        rounding: how far apart rounding may put two states of one point; see merge_duplicates.
        backend: "numpy", the only one there is; None: that, or what GEOWIDTH_BACKEND says.

    Returns:
        DimensionResult. A value is infinite where all the distances that it compares are equal.

    Raises:
        UserError: bad entries, an unknown estimator, or too few distinct points: 3 for TwoNN, k + 1 for MLE.
    """
    distances = inputs.tensor("distances", distances)
    precision = distances.dtype
    matrix = square_matrix(distances, "distances")
    if flag("validate", validate):
        check_distances(matrix, "distances")
    estimators, k = _checked_estimators(estimators, k)
    kept, merged = merge_duplicates(matrix, precision, rounding)
    if merged:
        matrix = matrix[np.ix_(kept, kept)]
    needed = max(3 if name.startswith("twonn") else k + 1 for name in estimators)
    if len(matrix) < needed:
        raise UserError(
            f"there are {len(matrix)} distinct points ({merged} repeated); {', '.join(estimators)} at k = {k} "
            f"needs at least {needed}"
        )
    values = DIMENSION.choose("cpu", backend).run(matrix, k, estimators, needed - 1)
    return DimensionResult(values, k, len(matrix), merged)


def merge_duplicates(
    distances: ArrayLike, precision: Precision | None = None, rounding: ArrayLike | None = None
) -> tuple[np.ndarray, int]:
    """Which points to keep so that no two of them coincide.

    Two points coincide if rounding alone may have put them apart. Where the states behind the matrix are known, that is
    the larger `rounding` of the two. Else it is four units in the last place of the largest finite distance. In order
    of index, a point that coincides with an earlier kept one is left out.

    Args:
        distances: (n, n) numpy array or tensor.
        precision: the dtype the distances were computed in (default: the one they come in). Not used with `rounding`.
        rounding: (n,) distances, or one for all. For states x of d numbers in a precision of spacing eps,
            MERGED_WITHIN * eps * ||x|| (geowidth.measure.statistics): the type of the matrix says nothing about it.

    Returns:
        (kept indices in increasing order as an int64 array, how many were left out)
    """
    distances = inputs.tensor("distances", distances)
    matrix = square_matrix(distances, "distances")
    n = len(matrix)
    if rounding is None:
        largest = np.max(matrix, initial=0.0, where=np.isfinite(matrix))
        within = epsilon(distances.dtype if precision is None else precision)
        rounding = MERGED_WITHIN * within * largest
    close = matrix <= _checked_rounding(rounding, n)
    close |= close.T
    kept = np.ones(n, dtype=bool)
    for i in np.flatnonzero(close.sum(axis=1) > 1):
        if kept[i]:
            kept[i + 1 :] &= ~close[i, i + 1 :]
    return np.flatnonzero(kept), int(n - kept.sum())


def _checked_rounding(rounding, n):
    values = inputs.array("rounding", rounding)
    if values.shape not in ((), (n,)) or not (values >= 0).all():
        raise UserError(f"rounding is {shown(rounding)}; one number from 0 up, or {n} of them, are needed")
    return np.broadcast_to(values.astype(np.float64), n)


def _checked_estimators(estimators, k):
    names = choose_several("estimators", estimators, ESTIMATORS)
    return names, whole("k", k, 3 if "mle_mean" in names else 2)


DIMENSION = Operation("dimension", [Backend("numpy", ("cpu",), estimates)], dimension_reference)
