"""The elementwise op of feed-forward layers: act(gate) * up, or act(up), on several backends, with its gradient."""

import torch

from geowidth.errors import UserError
from geowidth.inputs import floating
from geowidth.ops import triton_support
from geowidth.ops.activation.functions import activation_function
from geowidth.ops.activation.native import NativeElementwise
from geowidth.ops.activation.reference import activate_reference
from geowidth.ops.activation.torch import TorchElementwise
from geowidth.ops.activation.triton import TritonElementwise
from geowidth.ops.backend import Backend, Operation, why_not_native

OPERATION = Operation(
    "ffn_activation",
    [
        Backend("native", ("cpu",), NativeElementwise, why_not_native),
        Backend("triton", ("cuda", "cpu"), TritonElementwise, triton_support.why_not),
        Backend("torch", ("cpu", "cuda"), TorchElementwise),
    ],
    activate_reference,
)


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
        gate = None if gate is None else gate.view_as(gate)
        up = up.view_as(up)  # apart, should both be one tensor
        hidden = function.apply(up) if gate is None else function.apply(gate) * up
        wanted = [t for t, need in zip((gate, up), ctx.needs_input_grad[:2], strict=True) if need]
        found = iter(torch.autograd.grad(hidden, wanted, grad_hidden, create_graph=True))
        return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None
    grad_gate, grad_up = _backward(grad_hidden, gate, up, ctx.activation, ctx.backend)
    return grad_gate if ctx.gated else None, grad_up, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


def activate(
    gate: torch.Tensor | None, up: torch.Tensor, activation: str, *, backend: str | None = None
) -> torch.Tensor:
    """act(gate) * up elementwise, or act(up) when gate is None.

    gate, up: (..., width), same shape, dtype (float32, float64, bfloat16 or float16) and device, any strides: the
    halves of a `chunk(2, -1)` are read where they lie. activation: a name of geowidth.ops.activation.functions.
    backend: "triton", "native" or "torch"; by default the first that can. Returns a new contiguous tensor of that shape
    and dtype, formed in float32 or wider and rounded once. Differentiable, twice too. Raises UserError for unequal or
    unsupported inputs.
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
