"""How many gradient paths reach each block of a pre-norm residual stack (arXiv 2606.26538).

A block's output reaches the loss by the identity path and by one more path through each block downstream: those are
the paths of the lowest orders, and what the paper counts. A loss head after every block has paths of its own.
"""

import numpy as np

from geowidth.allocate.schedules.fan_in import gradient_paths, head_weights_of
from geowidth.errors import whole
from geowidth.inputs import ArrayLike
from geowidth.models.config import block_order


def predicted_fan_in(
    layers: int,
    *,
    supervised: bool = False,
    head_weights: ArrayLike | None = None,
    repeat_last: int = 0,
    repeat_times: int = 1,
) -> np.ndarray:
    """The fan-in of each of `layers` blocks, float64 (layers,), first block first.

    Block l = 1..L has L - l + 1; with `supervised`, an equally weighted loss head after every block, it has
    (L-l+1)(L-l+2)/2; with head_weights e_k, one a place, the sum over k >= l of e_k (k - l + 1). Those of a training
    with early exits are geowidth.train.supervision.exit_weights.

    repeat_last, repeat_times: as in ModelConfig. L then counts the places that states pass, and a block whose
    parameters stand at several of them has the sum of their fan-ins: there its gradients add up.
    """
    layers = whole("layers", layers, 1)
    order = block_order(layers, whole("repeat_last", repeat_last, 0, layers), whole("repeat_times", repeat_times, 1))
    paths = gradient_paths(head_weights_of(len(order), supervised, head_weights))
    return np.bincount(order, weights=paths, minlength=layers)
