"""Losses of models in which one layer's width was changed at a time, and linear fits to them."""

from dataclasses import dataclass

import numpy as np

from geowidth.artifacts.calibration import GREATEST_EXPONENT, LEAST_EXPONENT
from geowidth.errors import UserError

# Exponents that are searched.
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


def linear_fit(sweep, curves):
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
