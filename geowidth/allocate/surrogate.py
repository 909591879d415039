"""The loss surrogate sum_l c_l w_l^(-a_l): its coefficients from measured work, its exponents from intrinsic dimension.

Source: Mudarisov, Burtsev, State, "Geometry-Guided Layerwise FFN Width Allocation in Transformers" (arXiv 2608.02064),
with one correction. Work is measured in a model whose FFN l has width w0_l, so a layer's difficulty e_l is what is left
at that width: c_l w0_l^(-a_l) = e_l, hence c_l = e_l w0_l^(a_l). Without this factor the optimum would depend on the
unit in which widths are counted, and with unequal exponents could even reverse the order of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from geowidth.artifacts.per_layer import count, per_layer
from geowidth.errors import UserError, shown

if TYPE_CHECKING:
    from geowidth.inputs import ArrayLike


@dataclass(frozen=True)
class Surrogate:
    """sum_l coefficient_l * width_l ** -exponent_l, both float64 of shape (layers,).

    Coefficients are finite, 0 or more, and so is their sum; exponents are finite and above 0; UserError otherwise.
    """

    coefficient: np.ndarray
    exponent: np.ndarray

    def __post_init__(self):
        layers = count(self.coefficient)
        object.__setattr__(self, "coefficient", per_layer("coefficient", self.coefficient, layers))
        object.__setattr__(self, "exponent", per_layer("exponent", self.exponent, layers, strict=True))
        with np.errstate(over="ignore"):
            total = self.coefficient.sum()
        if not layers or not np.isfinite(total):
            raise UserError(f"the {layers} coefficients add up to {total}; a finite sum of one or more is needed")

    @property
    def size(self) -> int:
        """How many layers there are."""
        return len(self.coefficient)

    def value(self, widths: np.ndarray) -> np.ndarray:
        """Each layer's term at `widths`, (..., layers) float64."""
        return self.coefficient * np.power(widths, -self.exponent)

    def gain(self, widths: np.ndarray, step: int) -> np.ndarray:
        """How much each layer's term falls when its width grows by `step`; formed without cancellation."""
        return -self.value(widths) * np.expm1(-self.exponent * np.log1p(step / widths))

    def slack(self, step: int) -> float:
        """Gains no further apart than this are equal: none but equal ones."""
        return 0.0


def smooth(work: Sequence[float] | np.ndarray) -> np.ndarray:
    """`work` averaged over depth with weights [1 2 1]/4; at the ends [2 1]/3. Shape (layers,), float64."""
    padded = np.pad(np.asarray(work, dtype=np.float64), 1)
    weight = np.convolve(np.pad(np.ones(len(work)), 1), [1.0, 2.0, 1.0], mode="valid")
    return np.convolve(padded, [1.0, 2.0, 1.0], mode="valid") / weight


def exponents(
    exponent: ArrayLike, layers: int, dimension: ArrayLike | None = None, smoothness: float = 1.0
) -> np.ndarray:
    """The a_l of every layer, float64 of shape (layers,).

    `exponent`: "dimension" for a_l = 2 smoothness / dimension_l, the rate at which a width-w network approximates a
    function of that smoothness on a manifold of that dimension; or one positive number; or one a layer.
    """
    if not isinstance(exponent, str):
        return per_layer("exponent", exponent, layers, strict=True)
    if exponent != "dimension":
        raise UserError(
            f"exponent is {shown(exponent)}; allowed: 'dimension', 'fitted', a number above 0, or one a layer"
        )
    if dimension is None:
        raise UserError("exponent 'dimension' needs a work profile with intrinsic dimensions; give a number instead")
    smoothness = per_layer("smoothness", smoothness, 1, strict=True)[0]
    return 2.0 * smoothness / per_layer("intrinsic dimension", dimension, layers, strict=True)


def calibrated_surrogate(difficulty: ArrayLike, reference_widths: ArrayLike, exponent: ArrayLike) -> Surrogate:
    """The surrogate that equals `difficulty` e_l at the reference widths w0_l: c_l = e_l w0_l^(a_l)."""
    layers = count(difficulty)
    difficulty = per_layer("work", difficulty, layers)
    widths = per_layer("reference width", reference_widths, layers, strict=True)
    exponent = per_layer("exponent", exponent, layers, strict=True)
    with np.errstate(over="ignore"):
        coefficient = difficulty * np.power(widths, exponent)
    if not np.isfinite(coefficient).all():
        raise UserError("exponents are too large for these widths: width ** exponent overflows; give smaller exponents")
    return Surrogate(coefficient, exponent)
