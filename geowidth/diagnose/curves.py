"""Fitting loss-versus-width curves: loss = mu_seed + e_l ((w / w0)^(-a_l) - 1), one layer's width changed at a time.

mu_seed is the loss of the unchanged model with that seed, estimated from all its runs and not from the one unchanged
run alone, whose noise every difference would share. e_l = c_l w0^(-a_l) is the difficulty at the reference width w0 and
a_l the exponent of the surrogate. Given a_l everything is linear, so a_l is found on a grid and refined, and intervals
are profiles: all values that some curve reaches whose squared residuals are within the t threshold of the least. They
stay honest where e and a trade off against each other, which a few widths cannot prevent; Wald intervals would not.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import minimize_scalar

from geowidth.errors import UserError

LEAST_EXPONENT, GREATEST_EXPONENT = 1e-2, 4.0
GRID = np.geomspace(LEAST_EXPONENT, GREATEST_EXPONENT, 241)


@dataclass(frozen=True)
class Sweep:
    """Losses of a calibration sweep: base (seeds,), losses (layers, widths, seeds); w / w0: ratios (layers, widths)."""

    base: np.ndarray
    losses: np.ndarray
    ratios: np.ndarray

    def __post_init__(self):
        layers, widths, seeds = self.losses.shape
        if self.base.shape != (seeds,) or self.ratios.shape != (layers, widths):
            raise UserError(f"losses are {self.losses.shape}, base {self.base.shape}, ratios {self.ratios.shape}")
        if not np.isfinite(self.losses).all() or not np.isfinite(self.base).all():
            raise UserError("a loss is not finite; look for diverged trainings and lower the learning rate")
        if (self.ratios <= 0).any() or (self.ratios == 1).any():
            raise UserError("ratios of width to reference width must be above 0 and not 1, which is the base")
        if self.freedom(2 * layers) < 1:
            raise UserError(
                f"{widths} widths and {seeds} seeds leave nothing to judge {2 * layers} numbers by; take more of them"
            )

    def freedom(self, parameters):
        """Residual degrees of freedom of a model with that many parameters beside one mean per seed."""
        return self.losses.size - parameters

    def centred(self, curve):
        """Residuals (losses, base) of curve (layers, widths) with the best mean per seed."""
        off = self.losses - curve[:, :, None]
        mean = (off.sum(axis=(0, 1)) + self.base) / (off[:, :, 0].size + 1)
        return off - mean, self.base - mean

    def squares(self, curve):
        """Sum of squared residuals of a curve."""
        off, base = self.centred(curve)
        return float(np.square(off).sum() + np.square(base).sum())


def basis(ratios, exponent):
    """(w / w0)^(-a) - 1, without cancellation at small a."""
    return np.expm1(-exponent * np.log(ratios))


@dataclass(frozen=True)
class LayerFit:
    """One layer's curve: difficulty e and exponent a with profile intervals, explained share of its variance.

    c = e w0^a is left to the caller, who knows w0: `coefficient(w0)` returns it with its interval.
    """

    difficulty: float
    difficulty_interval: tuple
    exponent: float
    exponent_interval: tuple
    explained: float
    region: tuple  # (exponents within the threshold, least and greatest difficulty for each), arrays

    def coefficient(self, reference):
        """(c, (low, high)): c_l = e_l w0^(a_l) over the region of curves that the data allow."""
        exponents, low, high = self.region
        scale = float(reference) ** exponents
        value = self.difficulty * float(reference) ** self.exponent
        return value, (float(min((low * scale).min(), value)), float(max((high * scale).max(), value)))


@dataclass(frozen=True)
class CurveFit:
    """All layers: fits with an exponent each, fits with one shared exponent, and how well the forms do."""

    layers: tuple
    shared_exponent: float
    shared_interval: tuple
    shared_difficulty: np.ndarray
    shared_difficulty_interval: np.ndarray  # (layers, 2)
    noise: float  # standard deviation of one loss around its curve
    forms: dict
    lack_of_fit: dict | None


def fit_curves(sweep, confidence=0.95):
    """CurveFit of a Sweep; see the module for the model. confidence: of all intervals."""
    layers = sweep.losses.shape[0]
    exponent, difficulty = _fit_each(sweep)
    curve = difficulty[:, None] * basis(sweep.ratios, exponent[:, None])
    squares = sweep.squares(curve)
    freedom = sweep.freedom(2 * layers)
    variance = squares / freedom
    limit = variance * stats.t.ppf(0.5 + confidence / 2, freedom) ** 2
    residual, base = sweep.centred(curve)
    levelled = residual + curve[:, :, None]  # each loss minus its seed's mean
    fits = tuple(_layer_fit(sweep.ratios[i], levelled[i], exponent[i], difficulty[i], limit) for i in range(layers))
    shared = _fit_shared(sweep, confidence)
    return CurveFit(
        fits, *shared, float(np.sqrt(variance)), _forms(sweep, squares, shared[0]), _lack_of_fit(sweep, squares)
    )


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
        done = np.abs(new - mean).max() <= 1e-13 * max(1.0, np.abs(new).max())
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
        options={"xatol": 1e-10},
    )
    exponent = float(np.exp(found.x)) if found.fun < squares[place] else float(GRID[place])
    return exponent, float(_profile(ratios, levelled, np.array([exponent]))[0][0])


def _layer_fit(ratios, levelled, exponent, difficulty, limit):
    grid = np.sort(np.append(GRID, exponent))
    best, squares, weight = _profile(ratios, levelled, grid)
    spare = limit - (squares - squares.min())
    inside = spare >= 0
    half = np.sqrt(spare[inside] / weight[inside])
    region = grid[inside], best[inside] - half, best[inside] + half
    total = float(np.square(levelled).sum())
    return LayerFit(
        difficulty,
        (float(region[1].min()), float(region[2].max())),
        exponent,
        (float(region[0].min()), float(region[0].max())),
        1.0 - float(squares.min()) / total if total > 0 else 0.0,
        region,
    )


def _linear(sweep, curves):
    """Least squares of losses on one mean per seed and one multiple per layer of `curves` (layers, widths).

    Returns (multiples, squared residuals, their covariance without the variance of one loss).
    """
    layers, widths, seeds = sweep.losses.shape
    design = np.zeros((layers, widths, seeds, seeds + layers))
    design[..., :seeds] = np.eye(seeds)
    for i in range(layers):
        design[i, :, :, seeds + i] = curves[i][:, None]
    rows = np.vstack([design.reshape(-1, seeds + layers), np.eye(seeds, seeds + layers)])
    values = np.concatenate([sweep.losses.ravel(), sweep.base])
    inverse = np.linalg.pinv(rows)
    solution = inverse @ values
    return solution[seeds:], float(np.square(values - rows @ solution).sum()), (inverse @ inverse.T)[seeds:, seeds:]


def _fit_shared(sweep, confidence):
    """(exponent, interval, difficulties, their intervals) with one exponent for all layers."""
    layers = sweep.losses.shape[0]
    table = [_linear(sweep, basis(sweep.ratios, a)) for a in GRID]
    squares = np.array([row[1] for row in table])
    place = int(np.argmin(squares))
    found = minimize_scalar(
        lambda log: _linear(sweep, basis(sweep.ratios, np.exp(log)))[1],
        bounds=(np.log(GRID[max(place - 1, 0)]), np.log(GRID[min(place + 1, len(GRID) - 1)])),
        method="bounded",
    )
    exponent = float(np.exp(found.x)) if found.fun < squares[place] else float(GRID[place])
    difficulty, least, covariance = _linear(sweep, basis(sweep.ratios, exponent))
    freedom = sweep.freedom(layers + 1)
    limit = least / freedom * stats.t.ppf(0.5 + confidence / 2, freedom) ** 2
    bounds = [(exponent, difficulty, limit, covariance)]
    bounds += [(a, m, limit - (s - least), v) for a, (m, s, v) in zip(GRID, table, strict=True) if s - least <= limit]
    reach = [np.sqrt(max(spare, 0.0) * np.diag(v)) for _, _, spare, v in bounds]
    low = np.min([m - r for (_, m, _, _), r in zip(bounds, reach, strict=True)], axis=0)
    high = np.max([m + r for (_, m, _, _), r in zip(bounds, reach, strict=True)], axis=0)
    exponents = [a for a, *_ in bounds]
    return exponent, (min(exponents), max(exponents)), difficulty, np.stack([low, high], axis=1)


def _forms(sweep, squares, shared):
    """Squared residuals, parameters and AICc of the power law and its rivals, each beside one mean per seed."""
    layers, widths, _ = sweep.losses.shape
    cells = sweep.losses - sweep.base
    rivals = {
        "power": (squares, 2 * layers),
        "power, one exponent": (_linear(sweep, basis(sweep.ratios, shared))[1], layers + 1),
        "logarithm": (_linear(sweep, -np.log(sweep.ratios))[1], layers),
        "line": (_linear(sweep, 1.0 - sweep.ratios)[1], layers),
        "any curve": (_saturated(sweep), layers * widths),
        "no effect": (sweep.squares(np.zeros((layers, widths))), 0),
    }
    count = cells.size + sweep.base.size
    return {
        name: _criterion(value, parameters + sweep.base.size + 1, count) for name, (value, parameters) in rivals.items()
    }


def _criterion(squares, parameters, count):
    """{"squares", "parameters", "aicc"}; AICc is None where there are too few losses for it."""
    aicc = None
    if count > parameters + 1 and squares > 0:
        penalty = 2 * parameters * count / (count - parameters - 1)
        aicc = float(count * np.log(squares / count) + penalty)
    return {"squares": squares, "parameters": parameters, "aicc": aicc}


def _saturated(sweep):
    """Squared residuals with a free mean for every layer and width, beside one per seed: what no curve can explain."""
    table = np.vstack([sweep.losses.reshape(-1, sweep.base.size), sweep.base])
    off = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float(np.square(off).sum())


def _lack_of_fit(sweep, squares):
    """F test of the power law against free means; None with one seed, which shows no pure error."""
    layers, widths, seeds = sweep.losses.shape
    extra, pure = layers * (widths - 2), (layers * widths) * (seeds - 1)
    least = _saturated(sweep)
    if extra < 1 or pure < 1 or least <= 0:
        return None
    value = max(squares - least, 0.0) / extra / (least / pure)
    return {"f": float(value), "freedom": [extra, pure], "p": float(stats.f.sf(value, extra, pure))}
