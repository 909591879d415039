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


def lack_of_fit_test(sweep, squares):
    """F test of the power law against free means; None with one seed, which shows no pure error."""
    layers, widths, seeds = sweep.losses.shape
    extra, pure = layers * (widths - 2), (layers * widths) * (seeds - 1)
    least = _saturated(sweep)
    if extra < 1 or pure < 1 or least <= 0:
        return None
    value = max(squares - least, 0.0) / extra / (least / pure)
    return {"f": float(value), "freedom": [extra, pure], "p": float(stats.f.sf(value, extra, pure))}
