"""The precision in which numbers were produced, which may be coarser than the type that holds them."""

import numpy as np
import torch

from geowidth.errors import choose

Precision = str | torch.dtype | np.dtype | type

# Spacing of the numbers just above 1, by name of the type.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def coarsest(*precisions: Precision | None) -> str:
    """The name of the coarsest of some precisions: torch or numpy dtypes, or names of EPSILON; None is passed over.

    What holds no fractions (integers, bool) or more than float64 counts as float64, in which it is computed.
    """
    return max((_name(one) for one in ("float64", *precisions) if one is not None), key=EPSILON.__getitem__)


def epsilon(precision: Precision) -> float:
    """Spacing of the numbers just above 1 in a precision: a torch or numpy dtype, a numpy type, or a name."""
    return EPSILON[coarsest(precision)]


def _name(precision):
    if isinstance(precision, str):
        return choose("precision", precision, list(EPSILON))
    if isinstance(precision, torch.dtype):
        name = str(precision).removeprefix("torch.")
    elif isinstance(precision, (np.dtype, type)):
        name = np.dtype(precision).name  # the same for either byte order
    else:
        return choose("precision", precision, list(EPSILON))
    return name if name in EPSILON else "float64"
