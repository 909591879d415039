"""How many gradient paths reach each block of a pre-norm residual stack (arXiv 2606.26538).

A block's output reaches the loss by the identity path and by one more path through each block downstream: those are
the paths of the lowest orders, and what the paper counts. A loss head after every block has paths of its own.
"""

import numpy as np

from geowidth.allocate.schedules.fan_in import gradient_paths, head_weights_of
from geowidth.errors import whole
from geowidth.inputs import ArrayLike


def predicted_fan_in(layers: int, *, supervised: bool = False, head_weights: ArrayLike | None = None) -> np.ndarray:
    """The fan-in of each of `layers` blocks, float64 (layers,), first block first.

    Block l = 1..L has L - l + 1; with `supervised`, an equally weighted loss head after every block, it has
    (L-l+1)(L-l+2)/2; with head_weights e_k, one a layer, the sum over k >= l of e_k (k - l + 1).
    """
    return gradient_paths(head_weights_of(whole("layers", layers, 1), supervised, head_weights))
