"""Activations by plain torch, in float64: what the op is tested against."""

import torch

from geowidth.ops.activation.functions import activation_function


def activate_reference(gate: torch.Tensor | None, up: torch.Tensor, activation: str) -> torch.Tensor:
    """act(gate) * up, or act(up) when gate is None, in float64 by plain torch. Shapes as in `activate`."""
    function = activation_function(activation, gate is not None)
    if gate is None:
        return function.apply(up.double())
    return function.apply(gate.double()) * up.double()
