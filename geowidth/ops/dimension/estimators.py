"""The estimators of intrinsic dimension, from every point's few nearest distances."""

import numpy as np

from geowidth.errors import UserError

ESTIMATORS = ("twonn_mle", "twonn_fit", "mle", "mle_mean")
DISCARDED = 0.1  # the share of largest ratios that the TwoNN fit leaves out


def estimates(matrix, k, names, count):
    """{estimator: dimension} of distinct points, matrix (N, N) float64, from the `count` nearest of each."""
    nearest = _nearest_distances(matrix, count)
    return {name: _ESTIMATES[name](nearest, k) for name in names}


def _nearest_distances(matrix, count):
    """(N, count): each point's nearest distances, in increasing order; the zero to itself comes first and goes."""
    nearest = np.sort(np.partition(matrix, count, axis=1)[:, : count + 1], axis=1)[:, 1:]
    finite = np.isfinite(nearest).all(axis=1)
    if not finite.all():
        i = int(np.argmin(finite))
        raise UserError(f"point {i} has fewer than {count} others at a finite distance; make its distances finite")
    return nearest


def _quotient(numerator, denominator):
    return float(numerator / denominator) if denominator > 0 else np.inf


def _log_ratios(nearest):
    return np.log(nearest[:, 1] / nearest[:, 0])


def _twonn_mle(nearest, _):
    return _quotient(len(nearest) - 1, _log_ratios(nearest).sum())


def _twonn_fit(nearest, _):
    points = len(nearest)
    used = int(points * (1 - DISCARDED))
    ratios = np.sort(_log_ratios(nearest))[:used]
    levels = -np.log1p(-np.arange(1, used + 1) / points)
    return _quotient(ratios @ levels, ratios @ ratios)


def _log_sums(nearest, k):
    return np.log(nearest[:, k - 1 : k] / nearest[:, : k - 1]).sum(axis=1)


def _mle(nearest, k):
    return _quotient(len(nearest) * (k - 1), _log_sums(nearest, k).sum())


def _mle_mean(nearest, k):
    with np.errstate(divide="ignore"):
        return float(np.mean((k - 2) / _log_sums(nearest, k)))


_ESTIMATES = {"twonn_mle": _twonn_mle, "twonn_fit": _twonn_fit, "mle": _mle, "mle_mean": _mle_mean}
