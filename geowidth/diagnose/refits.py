"""What noise alone leaves unexplained: the power law fitted again to many tables made by a known curve and noise.

A layer's two numbers, difficulty and exponent, take up two degrees of freedom only where its curve stands out of the
noise. Where width does little the exponent has nothing to hold on to and takes up far less, so that the residuals of
the right law are larger than counting parameters says. How much larger is found by fitting such tables.
"""

from dataclasses import dataclass

import numpy as np

from geowidth.diagnose.sweep import GRID, basis

_TABLES, _PASSES = 200, 60


@dataclass(frozen=True)
class NoiseLack:
    """Squared residuals that the law leaves of the means of the seeds, over the variance of one loss, when it holds.

    mean, variance: of their sum. layers: the mean of every layer, (layers,).
    """

    mean: float
    variance: float
    layers: np.ndarray


def noise_lack(sweep, curve, gain, variance):
    """NoiseLack of a Sweep's law `curve` (layers, widths); gain: squares it explains; variance: of one loss, above 0.

    Noise widens a fitted curve: what it is expected to add to the gain, a variance a layer or a little more, is taken
    off before tables are drawn from it.
    """
    layers, widths, seeds = sweep.losses.shape
    own = max(0.0, 1.0 - layers * variance / gain) if gain > 0 else 0.0
    generator, unit = np.random.default_rng(0), np.sqrt(seeds / variance)
    means = np.sqrt(own) * curve * unit + generator.standard_normal((_TABLES, layers, widths))
    base = generator.standard_normal(_TABLES)
    fitted, level = refit(means, base, sweep.ratios)
    lack = np.square(means - level[:, None, None] - fitted).sum(axis=2)
    total = lack.sum(axis=1) + np.square(base - level)
    return NoiseLack(float(total.mean()), float(total.var(ddof=1)), lack.mean(axis=0))


def refit(means, base, ratios):
    """Least squares of loss = level + e_l (ratio^(-a_l) - 1) for many tables at once.

    means: (tables, layers, widths); base: (tables,), the means at ratio 1. Returns (curves like means, levels like
    base). Curves and levels are fitted in turn, every third step extrapolated.
    """
    level, before = base.copy(), None
    directions = basis(ratios[:, None, :], GRID[:, None])
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    for turn in range(_PASSES):
        curves = _closest(means - level[:, None, None], ratios, directions)
        step = ((means - curves).sum(axis=(1, 2)) + base) / (means[0].size + 1) - level
        if np.abs(step).max() <= 1e-6:
            break
        if turn % 3 == 2 and before is not None:
            shrinks = np.clip(np.divide(step, before, out=np.zeros_like(step), where=before != 0), -0.9, 0.95)
            level, before = level + step / (1 - shrinks), None
        else:
            level, before = level + step, step
    return _closest(means - level[:, None, None], ratios, directions), level


def _closest(values, ratios, directions):
    """The curve of the law nearest to each of values (tables, layers, widths); directions: (layers, grid, widths)."""
    gains = np.square(values.transpose(1, 0, 2) @ directions.transpose(0, 2, 1))
    place = np.clip(gains.argmax(axis=2), 1, len(GRID) - 2)[..., None]
    low, middle, high = (np.take_along_axis(gains, place + k, axis=2)[..., 0].T for k in (-1, 0, 1))
    bend = low - 2 * middle + high
    off = np.divide(low - high, 2 * bend, out=np.where(low > high, -1.0, 1.0), where=bend < 0)
    exponent = GRID[place[..., 0].T] * (GRID[1] / GRID[0]) ** np.clip(off, -1, 1)
    x = basis(ratios[None], exponent[..., None])
    return x * ((x * values).sum(axis=2) / np.square(x).sum(axis=2))[..., None]
