"""The feed-forward layer by plain torch: what the op is checked and measured against."""

import torch

from geowidth.ops.activation.functions import activation_function


def ffn_plain(x, gate, up, down, activation, gate_bias=None, up_bias=None, down_bias=None):
    """The layer by plain torch in the inputs' dtype, differentiable any number of times: what `ffn` is measured by."""
    function = activation_function(activation, gate is not None)
    linear = torch.nn.functional.linear
    hidden = linear(x, up, up_bias)
    hidden = function.apply(hidden) if gate is None else function.apply(linear(x, gate, gate_bias)) * hidden
    y = hidden @ down
    return y if down_bias is None else y + down_bias


def ffn_reference(x, gate, up, down, activation, *, gate_bias=None, up_bias=None, down_bias=None):
    """The layer in float64 by plain torch. Arguments as in `ffn`; returns float64."""
    given = (x, gate, up, down, gate_bias, up_bias, down_bias)
    x, gate, up, down, *biases = (None if t is None else t.double() for t in given)
    return ffn_plain(x, gate, up, down, activation, *biases)
