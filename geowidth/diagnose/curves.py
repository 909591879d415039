"""Fitting loss-versus-width curves: loss = mu_seed + e_l ((w / w0)^(-a_l) - 1), one layer's width changed at a time.

mu_seed is the loss of the unchanged model with that seed, estimated from all its runs and not from the one unchanged
run alone, whose noise every difference would share. e_l = c_l w0^(-a_l) is the difficulty at the reference width w0 and
a_l the exponent of the surrogate. Given a_l everything is linear, so a_l is found on a grid and refined, and intervals
are profiles: all values that some curve reaches whose squared residuals are within the t threshold of the least. They
stay honest where e and a trade off against each other, which a few widths cannot prevent; Wald intervals would not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import minimize_scalar

from geowidth.artifacts.calibration import bounded
from geowidth.diagnose.explained import explained_share
from geowidth.diagnose.forms import compare_forms, lack_of_fit_test, rounding, saturated, seed_noise
from geowidth.diagnose.refits import noise_lack
from geowidth.diagnose.sweep import GRID, Sweep, basis, linear_fit


@dataclass(frozen=True)
class LayerFit:
    """One layer's curve: difficulty e and exponent a with profile intervals, and the share of what its width does that
    the curve explains, with an interval (geowidth.diagnose.explained; None where nothing can be said).

    c = e w0^a is left to the caller, who knows w0: `coefficient(w0)` returns it with its interval.
    """

    difficulty: float
    difficulty_interval: tuple[float, float]
    exponent: float
    exponent_interval: tuple[float, float]
    explained: float | None
    explained_interval: tuple[float, float] | None
    region: tuple[
        np.ndarray, np.ndarray, np.ndarray
    ]  # (exponents within the threshold, least and greatest difficulty for each), arrays

    @property
    def determined(self) -> bool:
        """Whether the data bound the exponent on both sides within the range that was searched."""
        return bounded(*self.exponent_interval)

    @property
    def slope(self) -> tuple[float, tuple[float, float]]:
        """(e a, (low, high)): how fast the loss falls at the reference width, in the losses' unit and e-fold of width.

        Where the exponent is not determined, e and a trade off against each other and this product is what is known.
        """
        exponents, low, high = self.region
        value = self.difficulty * self.exponent
        return value, (float(min((low * exponents).min(), value)), float(max((high * exponents).max(), value)))

    def coefficient(self, reference: float) -> tuple[float, tuple[float, float]]:
        """(c, (low, high)): c_l = e_l w0^(a_l) over the region of curves that the data allow."""
        exponents, low, high = self.region
        scale = float(reference) ** exponents
        value = self.difficulty * float(reference) ** self.exponent
        return value, (float(min((low * scale).min(), value)), float(max((high * scale).max(), value)))


@dataclass(frozen=True)
class CurveFit:
    """All layers: fits with an exponent each, fits with one shared exponent, and how well the forms do."""

    layers: tuple[LayerFit, ...]
    shared_exponent: float
    shared_interval: tuple[float, float]
    shared_difficulty: np.ndarray
    shared_difficulty_interval: np.ndarray  # (layers, 2)
    noise: float  # standard deviation of one loss around its curve
    forms: dict[str, Any]
    lack_of_fit: dict[str, Any] | None
    explained: float | None  # of what free means explain, over all layers
    explained_interval: tuple[float, float] | None


def fit_curves(sweep: Sweep, confidence: float = 0.95) -> CurveFit:
    """CurveFit of a Sweep; see the module for the model. confidence: of all intervals."""
    layers = sweep.losses.shape[0]
    exponent, difficulty = _fit_each(sweep)
    curve = difficulty[:, None] * basis(sweep.ratios, exponent[:, None])
    squares = sweep.squares(curve)
    freedom = sweep.freedom(2 * layers)
    variance = squares / freedom
    limit = variance * stats.t.ppf(0.5 + confidence / 2, freedom) ** 2
    expected, whole, shares = _judged(sweep, curve, confidence)
    fits = tuple(_layer_fit(sweep, exponent, difficulty, layer, limit, shares[layer]) for layer in range(layers))
    shared_exponent, shared_interval, shared_difficulty, difficulty_interval = _fit_shared(sweep, confidence)
    share, share_interval = whole
    return CurveFit(
        fits,
        shared_exponent,
        shared_interval,
        shared_difficulty,
        difficulty_interval,
        float(np.sqrt(variance)),
        compare_forms(sweep, squares, shared_exponent),
        lack_of_fit_test(sweep, squares, expected),
        share,
        share_interval,
    )


def _judged(sweep, curve, confidence):
    """(NoiseLack, (share, interval) of all layers, of each): what a curve explains of what free means explain."""
    layers, widths, seeds = sweep.losses.shape
    means, least = sweep.losses.mean(axis=2), saturated(sweep)
    residuals = sweep.centred(curve)[0].mean(axis=2)
    lacks = seeds * np.square(residuals).sum(axis=1)
    gains = np.maximum(seeds * np.square(residuals + curve).sum(axis=1) - lacks, 0.0)
    lack = max(sweep.squares(curve) - least, 0.0)
    gain = max(sweep.squares(np.zeros_like(means)) - least - lack, 0.0)
    noise, pure = seed_noise(sweep)
    expected = noise_lack(sweep, curve, gain, noise) if noise else None

    def share(gain, lack, count, own):
        gain, lack = (part if part > sweep.losses.size * rounding(sweep) else 0.0 for part in (gain, lack))
        freedom = (count - own, own) if noise else None
        return explained_share(float(gain), float(lack), noise, freedom, pure, confidence)

    every = np.zeros(layers) if expected is None else expected.layers
    rows = [share(*numbers) for numbers in zip(gains, lacks, [widths] * layers, every, strict=True)]
    return expected, share(gain, lack, layers * widths, 0.0 if expected is None else expected.mean), rows


def _fit_each(sweep):
    """(exponents, difficulties) of all layers: curves and means of seeds in turn, until both stand still."""
    layers = sweep.losses.shape[0]
    mean = sweep.base.astype(np.float64)
    exponent, difficulty = np.ones(layers), np.zeros(layers)
    for _ in range(500):
        for i in range(layers):
            exponent[i], difficulty[i] = _best_curve(sweep.ratios[i], sweep.losses[i] - mean)
        curve = difficulty[:, None] * basis(sweep.ratios, exponent[:, None])
        new = ((sweep.losses - curve[:, :, None]).sum(axis=(0, 1)) + sweep.base) / (curve.size + 1)
        done = np.abs(new - mean).max() <= 1e-10 * max(1.0, np.abs(new).max())
        mean = new
        if done:
            break
    return exponent, difficulty


def _profile(ratios, levelled, exponents):
    """For each exponent: the best difficulty, its squared residuals, and the curvature sum x^2."""
    x = basis(ratios[None, :], exponents[:, None])
    count = levelled.shape[1]
    weight = count * np.square(x).sum(axis=1)
    best = (x @ levelled.sum(axis=1)) / weight
    return best, np.square(levelled).sum() - np.square(best) * weight, weight


def _best_curve(ratios, levelled):
    """(exponent, difficulty) of least squares for one layer, losses levelled (widths, seeds)."""
    squares = _profile(ratios, levelled, GRID)[1]
    place = int(np.argmin(squares))
    around = np.log(GRID[max(place - 1, 0)]), np.log(GRID[min(place + 1, len(GRID) - 1)])
    found = minimize_scalar(
        lambda log: float(_profile(ratios, levelled, np.exp([log]))[1][0]),
        bounds=around,
        method="bounded",
        options={"xatol": 1e-7},
    )
    exponent = float(np.exp(found.x)) if found.fun < squares[place] else float(GRID[place])
    return exponent, float(_profile(ratios, levelled, np.array([exponent]))[0][0])


def _layer_fit(sweep, exponent, difficulty, layer, limit, explained):
    """LayerFit of one layer, with the seeds' means and the other layers' curves fitted anew for each of its curves.

    The other curves are followed to first order around their best fits.
    """
    target, tangents = _other_directions(sweep, exponent, difficulty, layer)

    def profile(grid):
        curves = np.zeros((*sweep.losses.shape, grid.size))
        curves[layer] = basis(sweep.ratios[layer][:, None], grid)[:, None, :]
        curves = np.vstack([curves.reshape(-1, grid.size), np.zeros((sweep.base.size, grid.size))])
        curves -= tangents @ (tangents.T @ curves)
        weight = np.square(curves).sum(axis=0)
        best = (target @ curves) / weight
        return best, target @ target - np.square(best) * weight, weight

    grid = _grid_around(exponent[layer], lambda grid: profile(grid)[1], limit)
    best, squares, weight = profile(grid)
    spare = limit - (squares - squares.min())
    inside = spare >= 0
    half = np.sqrt(spare[inside] / weight[inside])
    region = grid[inside], best[inside] - half, best[inside] + half
    share, share_interval = explained
    return LayerFit(
        float(difficulty[layer]),
        (float(region[1].min()), float(region[2].max())),
        float(exponent[layer]),
        (float(region[0].min()), float(region[0].max())),
        share,
        share_interval,
        region,
    )


def _grid_around(exponent, squares, limit):
    """Exponents that resolve the interval where squares(grid) is within `limit` of its least: two in three inside."""
    first = np.sort(np.append(GRID, exponent))
    for _ in range(3):
        found = squares(first)
        inside = np.flatnonzero(found - found.min() <= limit)
        low, high = first[max(inside[0] - 1, 0)], first[min(inside[-1] + 1, len(first) - 1)]
        first = np.sort(np.append(np.geomspace(low, high, 121), exponent))
    return first


def _other_directions(sweep, exponent, difficulty, layer):
    """(losses, orthonormal basis) as rows of all losses and bases, the basis taken out of the losses.

    It spans what may change beside one layer: the seeds' means, and the other layers' difficulties and exponents.
    """
    layers, widths, seeds = sweep.losses.shape
    means = np.vstack([np.tile(np.eye(seeds), (layers * widths, 1)), np.eye(seeds)])
    columns = [*means.T]
    curve = basis(sweep.ratios, exponent[:, None])
    slope = -np.log(sweep.ratios) * (curve + 1.0)
    for other in range(layers):
        for direction in (curve, slope) if other != layer else ():
            full = np.zeros_like(sweep.losses)
            full[other] = direction[other][:, None]
            columns.append(np.append(full.ravel(), np.zeros(seeds)))
    tangents = np.linalg.qr(np.stack(columns, axis=1))[0]
    losses = np.append(sweep.losses.ravel(), sweep.base)
    return losses - tangents @ (tangents.T @ losses), tangents


def _fit_shared(sweep, confidence):
    """(exponent, interval, difficulties, their intervals) with one exponent for all layers."""
    layers = sweep.losses.shape[0]
    squares = np.array([linear_fit(sweep, basis(sweep.ratios, a))[1] for a in GRID])
    place = int(np.argmin(squares))
    found = minimize_scalar(
        lambda log: linear_fit(sweep, basis(sweep.ratios, np.exp(log)))[1],
        bounds=(np.log(GRID[max(place - 1, 0)]), np.log(GRID[min(place + 1, len(GRID) - 1)])),
        method="bounded",
    )
    exponent = float(np.exp(found.x)) if found.fun < squares[place] else float(GRID[place])
    difficulty, least, covariance = linear_fit(sweep, basis(sweep.ratios, exponent))
    freedom = sweep.freedom(layers + 1)
    limit = least / freedom * stats.t.ppf(0.5 + confidence / 2, freedom) ** 2
    grid = _grid_around(
        exponent, lambda grid: np.array([linear_fit(sweep, basis(sweep.ratios, a))[1] for a in grid]), limit
    )
    table = [(a, *linear_fit(sweep, basis(sweep.ratios, a))) for a in grid]
    bounds = [(exponent, difficulty, limit, covariance)]
    bounds += [(a, m, limit - (s - least), v) for a, m, s, v in table if s - least <= limit]
    reach = [np.sqrt(max(spare, 0.0) * np.diag(v)) for _, _, spare, v in bounds]
    low = np.min([m - r for (_, m, _, _), r in zip(bounds, reach, strict=True)], axis=0)
    high = np.max([m + r for (_, m, _, _), r in zip(bounds, reach, strict=True)], axis=0)
    exponents = [a for a, *_ in bounds]
    return exponent, (min(exponents), max(exponents)), difficulty, np.stack([low, high], axis=1)
