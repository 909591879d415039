"""Costs whose squares leave the range of float64: a common power of two takes them there and back.

E is in squared units of the costs, so costs of 1e200, or of 1e-170, can have an E that float64 holds only in parts, or
not at all. A power of two changes no digit of costs, plans or ratios.
"""

import dataclasses
import math
import sys

import torch

from geowidth.errors import UserError
from geowidth.geometry import times_power_of_two

HARMLESS = 400  # exponents of costs whose squares, and squares of differences in the last place, are ordinary numbers
LARGEST = sys.float_info.max**0.5 / 2  # E is at most (max |c1| + max |c2|)^2


def exponent_of(largest, harmless):
    """The e for which numbers up to `largest` are computed as multiples of 2^e: 0 where it is within +-harmless."""
    exponent = math.frexp(largest)[1]
    return exponent if abs(exponent) > harmless else 0


def over_power_of_two(tensor, exponent):
    """Divide by 2^exponent, in place and exactly. In two parts: one factor alone may leave the range of numbers."""
    half = exponent // 2
    return tensor.mul_(2.0**-half).mul_(2.0 ** (half - exponent)) if exponent else tensor


def common_exponent(c1, c2):
    """The e for which costs times 2^-e have their largest entry near 1; 0 where they can stay as they are.

    c1, c2: float32 or float64, finite, on any device. Squares of float32 numbers are always float64 numbers.
    """
    if c1.dtype == torch.float32:
        return 0
    largest = torch.stack([*c1.aminmax(), *c2.aminmax()]).abs().max().item()  # one wait for a GPU
    return exponent_of(largest, HARMLESS)


def rescaled(c1, c2, exponent):
    """Both costs times 2^-exponent, in float64; the same tensors for exponent 0."""
    return (c1, c2) if exponent == 0 else tuple(times_power_of_two(c.double(), -exponent) for c in (c1, c2))


def in_units_of(c1, c2, exponent, result, squared, decisive):
    """A result (dataclass) of rescaled costs, with its fields named in `squared` in squared units of c1 and c2.

    Raises UserError where one of them is above what float64 holds, or one of `decisive` is not 0 but too small for it.
    """
    if exponent == 0:
        return result
    changed = {name: _times_square(getattr(result, name), exponent) for name in squared}
    largest = [c.abs().max().item() for c in (c1, c2)]
    sizes = "c1 holds entries of up to {:.3g} and c2 of up to {:.3g}".format(*largest)
    if not all(map(math.isfinite, changed.values())):
        raise UserError(
            f"{sizes}: the squares in E are more than float64 holds; divide both by the same number (entries up to "
            f"{LARGEST:.3g} always fit)"
        )
    if any(getattr(result, name) > 0 and changed[name] < sys.float_info.min for name in decisive):
        raise UserError(f"{sizes}: E is too small for float64; multiply both by the same number (1e150 is enough)")
    return dataclasses.replace(result, **changed)


def _times_square(value, exponent):
    try:
        return math.ldexp(value, 2 * exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
