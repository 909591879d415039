"""How well w^(-a) describes loss-versus-width curves, beside other forms and beside no form at all."""

import numpy as np
from scipy import stats

from geowidth.diagnose.sweep import basis, linear_fit


def compare_forms(sweep, squares, shared):
    """Squared residuals, parameters and AICc of the power law and its rivals, each beside one mean per seed."""
    layers, widths, _ = sweep.losses.shape
    cells = sweep.losses - sweep.base
    rivals = {
        "power": (squares, 2 * layers),
        "power, one exponent": (linear_fit(sweep, basis(sweep.ratios, shared))[1], layers + 1),
        "logarithm": (linear_fit(sweep, -np.log(sweep.ratios))[1], layers),
        "line": (linear_fit(sweep, 1.0 - sweep.ratios)[1], layers),
        "any curve": (saturated(sweep), layers * widths),
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


def saturated(sweep):
    """Squared residuals with a free mean for every layer and width, beside one per seed: what no curve can explain."""
    table = np.vstack([sweep.losses.reshape(-1, sweep.base.size), sweep.base])
    off = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float(np.square(off).sum())


def seed_noise(sweep):
    """(variance of one loss, its degrees of freedom) from seeds that differ by more than their means; (None, 0) with
    one seed, which shows no noise. Rounding counts as none: the variance is then 0."""
    layers, widths, seeds = sweep.losses.shape
    freedom, least = layers * widths * (seeds - 1), saturated(sweep)
    if freedom < 1:
        return None, 0
    return (least / freedom if least > freedom * rounding(sweep) else 0.0), freedom


def rounding(sweep):
    """A squared difference of losses that rounding alone may make."""
    return (1e-12 * max(np.abs(sweep.losses).max(), np.abs(sweep.base).max())) ** 2


def lack_of_fit_test(sweep, squares, expected):
    """F test of the power law against free means; None where the seeds show no noise to judge it by.

    expected: NoiseLack of a law that holds. Its mean and variance, and not the count of parameters, say how many
    degrees of freedom the residuals of the means have: two moments of a scaled chi-square.
    """
    noise, pure = seed_noise(sweep)
    if not noise or sweep.losses.shape[1] < 3:
        return None
    freedom = 2 * expected.mean**2 / expected.variance
    value = max(squares - saturated(sweep), 0.0) / expected.mean / noise
    return {"f": float(value), "freedom": [freedom, pure], "p": float(stats.f.sf(value, freedom, pure))}
