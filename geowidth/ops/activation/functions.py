"""Activations of feed-forward layers: their names and their formulas.

Five functions of one number; every other name is an alias of one of them. `gelu` is the exact form
x Phi(x), `gelu_tanh` the approximation with tanh (Hendrycks and Gimpel 2016): they differ from the fourth digit on, so
no name ever stands for both. Names ending in GLU (Shazeer 2020) say that a gate is there; plain names work with and
without one, as they do in Hugging Face configs, where `hidden_act="silu"` of a gated layer means SwiGLU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from geowidth.errors import UserError, choose


def _gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


def _relu2(x):
    return functional.relu(x).square()


@dataclass(frozen=True)
class ActivationFunction:
    """One function of one number: its name, its number in the kernels, plain torch, and the derivative."""

    name: str
    code: int  # as `Activation` in csrc/cpu/ffn_activation.h and kernels/triton/pointwise.py
    apply: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor]


def _silu_slope(x):
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_slope(x):
    return 0.5 * torch.special.erfc(-x * math.sqrt(0.5)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x):
    scale = math.sqrt(2 / math.pi)
    t = torch.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)


FUNCTIONS = {
    function.name: function
    for function in (
        ActivationFunction("silu", 0, functional.silu, _silu_slope),
        ActivationFunction("gelu", 1, functional.gelu, _gelu_slope),
        ActivationFunction("gelu_tanh", 2, _gelu_tanh, _gelu_tanh_slope),
        ActivationFunction("relu", 3, functional.relu, lambda x: (x > 0).to(x.dtype)),
        ActivationFunction("relu2", 4, _relu2, lambda x: 2 * functional.relu(x)),
    )
}

# Every accepted name -> the function it means.
ALIASES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
}
GATED_ALIASES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}
NAMES = GATED_ALIASES | ALIASES


def is_gated_name(name: object) -> bool:
    """Whether the name alone says that a gate is there ("swiglu", "geglu", "geglu_tanh", "reglu")."""
    return isinstance(name, str) and name in GATED_ALIASES


def activation_function(name: str, gated: bool) -> ActivationFunction:
    """The ActivationFunction that `name` means.

    name: any of the names above. gated: whether there is a gate; a GLU name without one raises UserError, as does an
    unknown name, listing the choices.
    """
    if not isinstance(name, str) or name not in NAMES:
        choose("activation", name, NAMES)
    if name in GATED_ALIASES:
        if not gated:
            raise UserError(
                f"activation {name!r} needs a gate; give one, or use {GATED_ALIASES[name]!r} for a layer without"
            )
        return FUNCTIONS[GATED_ALIASES[name]]
    return FUNCTIONS[ALIASES[name]]
