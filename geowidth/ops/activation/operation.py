"""Activations of feed-forward layers: their names, their formulas, and the elementwise op around them.

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
from geowidth.inputs import floating
from geowidth.ops import triton_support
from geowidth.ops.backend import Backend, Operation, native, why_not_native

# Numbered as `Scalar` in csrc/cpu/ffn_activation.h.
SCALARS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def _gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


def _relu2(x):
    return functional.relu(x).square()


@dataclass(frozen=True)
class ActivationFunction:
    """One function of one number: its name, its number in the kernels, plain torch, and the derivative."""

    name: str
    code: int  # as `Activation` in csrc/cpu/ffn_activation.h and kernels/triton/pointwise.py
    apply: Callable
    slope: Callable


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


def is_gated_name(name):
    """Whether the name alone says that a gate is there ("swiglu", "geglu", "geglu_tanh", "reglu")."""
    return isinstance(name, str) and name in GATED_ALIASES


def activation_function(name, gated):
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


def activate_reference(gate, up, activation):
    """act(gate) * up, or act(up) when gate is None, in float64 by plain torch. Shapes as in `activate`."""
    function = activation_function(activation, gate is not None)
    if gate is None:
        return function.apply(up.double())
    return function.apply(gate.double()) * up.double()


class TorchElementwise:
    """Plain torch on any device: computed in float32 or wider, rounded to the storage type once."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """hidden (rows, columns) = act(gate) * up, or act(up) when gate is None."""
        wide = torch.float64 if up.dtype == torch.float64 else torch.float32
        value = function.apply((up if gate is None else gate).to(wide))
        hidden.copy_(value if gate is None else value * up.to(wide))

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """Fills grad_gate, grad_up and, unless None, hidden, which may be grad_hidden's own memory."""
        wide = torch.float64 if up.dtype == torch.float64 else torch.float32
        point, upward, gradient = (up if gate is None else gate).to(wide), up.to(wide), grad_hidden.to(wide)
        slope = function.slope(point) * gradient
        value = function.apply(point)
        if gate is None:
            grad_up.copy_(slope)
        else:
            grad_gate.copy_(slope * upward)
            grad_up.copy_(gradient * value)
            value = value * upward
        if hidden is not None:
            hidden.copy_(value)


class NativeElementwise:
    """The vectorised C++ of csrc/cpu/ffn_activation.simd.cpp on torch.get_num_threads() threads."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """As TorchElementwise.forward; every matrix has unit column stride."""
        native()[0].ffn_activation_forward(
            SCALARS[up.dtype], function.code, *up.shape, _place(gate), _place(up), _place(hidden),
            torch.get_num_threads(),
        )  # fmt: skip

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """As TorchElementwise.backward; every matrix has unit column stride."""
        native()[0].ffn_activation_backward(
            SCALARS[up.dtype], function.code, *up.shape, _place(gate), _place(up), _place(grad_hidden),
            _place(grad_gate), _place(grad_up), _place(hidden), torch.get_num_threads(),
        )  # fmt: skip


class TritonElementwise:
    """The Triton kernels of kernels/triton/activation.py."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """As TorchElementwise.forward; every matrix has unit column stride."""
        from geowidth.kernels import activation

        with torch.cuda.device_of(up):
            activation.forward(function.code, gate, up, hidden)

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """As TorchElementwise.backward; every matrix has unit column stride."""
        from geowidth.kernels import activation

        with torch.cuda.device_of(up):
            activation.backward(function.code, gate, up, grad_hidden, grad_gate, grad_up, hidden)


OPERATION = Operation(
    "ffn_activation",
    [
        Backend("native", ("cpu",), NativeElementwise, why_not_native),
        Backend("triton", ("cuda", "cpu"), TritonElementwise, triton_support.why_not),
        Backend("torch", ("cpu", "cuda"), TorchElementwise),
    ],
)


def _place(matrix):
    """(address, row stride) of a matrix for the native code; (0, 0) for None."""
    return (0, 0) if matrix is None else (matrix.data_ptr(), matrix.stride(0) if matrix.shape[0] > 1 else 0)


def as_rows(tensor):
    """`tensor` (..., columns) as a matrix with unit column stride: a view where the strides allow, else a copy."""
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.numel() else tensor.new_empty(0, tensor.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] <= 1 else rows.contiguous()


@torch.library.custom_op("geowidth::ffn_activation", mutates_args=())
def _forward(gate: torch.Tensor | None, up: torch.Tensor, activation: str, backend: str | None) -> torch.Tensor:
    function = activation_function(activation, gate is not None)
    chosen = OPERATION.choose(up.device.type, backend, device_type=up.device.type, dtype=up.dtype)
    hidden = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    if hidden.numel():
        chosen.run.forward(function, None if gate is None else as_rows(gate), as_rows(up), as_rows(hidden))
    return hidden


@_forward.register_fake
def _(gate, up, activation, backend):
    return torch.empty(up.shape, dtype=up.dtype, device=up.device)


@torch.library.custom_op("geowidth::ffn_activation_backward", mutates_args=())
def _backward(
    grad_hidden: torch.Tensor, gate: torch.Tensor | None, up: torch.Tensor, activation: str, backend: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    function = activation_function(activation, gate is not None)
    chosen = OPERATION.choose(up.device.type, backend, device_type=up.device.type, dtype=up.dtype)
    grad_up = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    grad_gate = torch.empty(up.shape if gate is not None else (0,), dtype=up.dtype, device=up.device)
    if grad_up.numel():
        gates = (None, None) if gate is None else (as_rows(gate), as_rows(grad_gate))
        chosen.run.backward(function, gates[0], as_rows(up), as_rows(grad_hidden), gates[1], as_rows(grad_up), None)
    return grad_gate, grad_up


@_backward.register_fake
def _(grad_hidden, gate, up, activation, backend):
    grad_gate = torch.empty(up.shape if gate is not None else (0,), dtype=up.dtype, device=up.device)
    return grad_gate, torch.empty(up.shape, dtype=up.dtype, device=up.device)


def _setup_context(ctx, inputs, output):
    gate, up, ctx.activation, ctx.backend = inputs
    ctx.gated = gate is not None
    ctx.save_for_backward(*([gate, up] if ctx.gated else [up]))


def _gradients(ctx, grad_hidden):
    gate, up = ctx.saved_tensors if ctx.gated else (None, *ctx.saved_tensors)
    if torch.is_grad_enabled():  # create_graph=True: gradients that can be differentiated again
        function = activation_function(ctx.activation, ctx.gated)
        gate, up = (None if t is None else t.view_as(t) for t in (gate, up))  # apart, should both be one tensor
        hidden = function.apply(up) if gate is None else function.apply(gate) * up
        wanted = [t for t, need in zip((gate, up), ctx.needs_input_grad[:2], strict=True) if need]
        found = iter(torch.autograd.grad(hidden, wanted, grad_hidden, create_graph=True))
        return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None
    grad_gate, grad_up = _backward(grad_hidden, gate, up, ctx.activation, ctx.backend)
    return grad_gate if ctx.gated else None, grad_up, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


def activate(gate, up, activation, *, backend=None):
    """act(gate) * up elementwise, or act(up) when gate is None.

    gate, up: (..., width), same shape, dtype (float32, float64, bfloat16 or float16) and device, any strides: the
    halves of a `chunk(2, -1)` are read where they lie. activation: a name of this module. backend: "triton", "native"
    or "torch"; by default the first that can. Returns a new contiguous tensor of that shape and dtype, formed in
    float32 or wider and rounded once. Differentiable, twice too. Raises UserError for unequal or unsupported inputs.
    """
    activation_function(activation, gate is not None)
    OPERATION.check_name(backend)
    up = floating("up", up, dispatched=True)
    gate = None if gate is None else floating("gate", gate, dispatched=True)
    if up.dim() < 1:
        raise UserError(f"up has shape {tuple(up.shape)}; needed: (..., width)")
    if gate is not None and (gate.shape, gate.dtype, gate.device) != (up.shape, up.dtype, up.device):
        raise UserError(
            f"gate is {tuple(gate.shape)} {gate.dtype} on {gate.device}, up is {tuple(up.shape)} {up.dtype} on "
            f"{up.device}; both must agree"
        )
    return _forward(gate, up, activation, backend)
