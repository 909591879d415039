"""The feed-forward layer of any width: y = (act(x gate^T + b_g) * (x up^T + b_u)) down + b_d, or ungated.

Weights are stored [width, d], the down-projection too: a width is a number of rows, never a stride, and hidden buffers
have a row stride of ceil8(width), so rows start aligned at every integer width.

Kept for backward: x, g = x gate^T and u = x up^T, nothing else (4 tokens width + 2 tokens d bytes in bfloat16);
with recompute="gate_up" x alone. The hidden activation h is formed again in backward. Without gradients neither g nor u
is kept. h is formed in float32 or wider from g and u as rounded to the storage dtype, and rounded once, so forward,
recomputation and every kind of checkpointing agree bit for bit.

On a GPU a table by (chip, d, tokens, width) says which products are fused; `explain` shows its choice, and
GEOWIDTH_FFN_FUSED=always or =never overrules it.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from geowidth.errors import MOST, UserError, choose, whole
from geowidth.inputs import floating
from geowidth.ops import triton_support
from geowidth.ops.activation.functions import activation_function
from geowidth.ops.activation.native import SCALARS, NativeElementwise
from geowidth.ops.activation.torch import TorchElementwise
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.feed_forward.blockwise import Blockwise, rows_per_block
from geowidth.ops.feed_forward.problem import FeedForwardProblem, Needs, gradient_rows, padded
from geowidth.ops.feed_forward.reference import ffn_plain, ffn_reference
from geowidth.ops.products import float32_products, product_dtype

RECOMPUTE = (None, "gate_up")
INPUT_PRECISIONS = ("ieee", "tf32", "tf32x3")


class TritonImplementation:
    """Fused Triton kernels where the tile table says so, library products elsewhere; loaded on first use."""

    @staticmethod
    def forward(problem, keep):
        """See geowidth.ops.feed_forward.triton.forward."""
        from geowidth.ops.feed_forward import triton

        with torch.cuda.device_of(problem.x), float32_products(problem.x, problem.input_precision):
            return triton.forward(problem, keep)

    @staticmethod
    def backward(problem, grad_y, g, u, needs):
        """See geowidth.ops.feed_forward.triton.backward."""
        from geowidth.ops.feed_forward import triton

        with torch.cuda.device_of(problem.x), float32_products(problem.x, problem.input_precision):
            return triton.backward(problem, grad_y, g, u, needs)


OPERATION = Operation(
    "ffn",
    [
        Backend("native", ("cpu",), Blockwise(NativeElementwise), why_not_native),
        Backend("triton", ("cuda", "cpu"), TritonImplementation, triton_support.why_not),
        Backend("torch", ("cpu", "cuda"), Blockwise(TorchElementwise)),
    ],
    ffn_reference,
)


def _choose(x, backend):
    return OPERATION.choose(x.device.type, backend, device_type=x.device.type, dtype=x.dtype).run


def _without_autocast(device):
    """Forward and backward compute in the dtype they are given, whatever is in force where they run."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _run_forward(
    x, gate, up, down, gate_bias, up_bias, down_bias, activation, keep, recompute, backend, input_precision
):  # fmt: skip
    function = activation_function(activation, gate is not None)
    problem = FeedForwardProblem(x, gate, up, down, gate_bias, up_bias, down_bias, function, input_precision)
    with _without_autocast(x.device.type):
        return _choose(x, backend).forward(problem, keep and not recompute)


def _run_backward(
    grad_y, x, gate, up, down, gate_bias, up_bias, g, u, activation, needs, backend, input_precision
):  # fmt: skip
    function = activation_function(activation, gate is not None)
    problem = FeedForwardProblem(x, gate, up, down, gate_bias, up_bias, None, function, input_precision)
    with _without_autocast(x.device.type):
        return _choose(x, backend).backward(problem, grad_y, g, u, Needs(*needs))


@torch.library.custom_op("geowidth::ffn", mutates_args=())
def _forward(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    up: torch.Tensor,
    down: torch.Tensor,
    gate_bias: torch.Tensor | None,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    recompute: bool,
    backend: str | None,
    input_precision: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _run_forward(
        x, gate, up, down, gate_bias, up_bias, down_bias, activation, keep, recompute, backend, input_precision
    )


@_forward.register_fake
def _(x, gate, up, down, gate_bias, up_bias, down_bias, activation, keep, recompute, backend, input_precision):
    tokens, width = x.shape[0], up.shape[0]

    def hidden(present):
        if not (present and keep and not recompute):
            return x.new_empty(0, 0)
        return x.new_empty_strided((tokens, width), (padded(width) if width else 1, 1))

    return torch.empty(x.shape, dtype=x.dtype, device=x.device), hidden(gate is not None), hidden(True)


@torch.library.custom_op("geowidth::ffn_backward", mutates_args=())
def _backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    up: torch.Tensor,
    down: torch.Tensor,
    gate_bias: torch.Tensor | None,
    up_bias: torch.Tensor | None,
    g: torch.Tensor | None,
    u: torch.Tensor | None,
    activation: str,
    needs: list[bool],
    backend: str | None,
    input_precision: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _run_backward(
        grad_y, x, gate, up, down, gate_bias, up_bias, g, u, activation, needs, backend, input_precision
    )


@_backward.register_fake
def _(grad_y, x, gate, up, down, gate_bias, up_bias, g, u, activation, needs, backend, input_precision):
    needs, (width, d), gated = Needs(*needs), up.shape, gate is not None
    slots, bias_slots = needs.slots(gated), needs.slots(gated, bias=True)
    return (
        torch.empty(x.shape if needs.x else (0,), dtype=x.dtype, device=x.device),
        x.new_empty((gradient_rows(slots, width), d) if slots else (0,)),
        x.new_empty((width, d) if needs.down else (0,)),
        x.new_empty((gradient_rows(bias_slots, width),) if bias_slots else (0,)),
    )


def _setup_context(ctx, inputs, output):
    x, gate, up, down, gate_bias, up_bias, down_bias = inputs[:7]
    ctx.activation, _, recompute, ctx.backend, ctx.input_precision = inputs[7:]
    _, g, u = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(g, u)
    g, u = (None, None) if recompute else (None if gate is None else g, u)
    ctx.save_for_backward(x, gate, up, down, gate_bias, up_bias, down_bias, g, u)


INPUTS = ("x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias")


def _gradients(ctx, grad_y, _grad_g, _grad_u):
    if grad_y is None:
        return (None,) * 12
    x, gate, up, down, gate_bias, up_bias, down_bias, g, u = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: gradients that can be differentiated again
        inputs = (x, gate, up, down, gate_bias, up_bias, down_bias)
        return (*_differentiable_gradients(ctx, inputs, grad_y), *(None,) * 5)
    wanted = ctx.needs_input_grad
    run = _backward if torch.compiler.is_compiling() or type(grad_y) is not torch.Tensor else _run_backward
    grad_x, grad_weight, grad_down, grad_bias = run(
        grad_y, x, gate, up, down, gate_bias, up_bias, g, u, ctx.activation, list(wanted[:6]), ctx.backend,
        ctx.input_precision,
    )  # fmt: skip
    width = up.shape[0]
    second = padded(width)  # where the second projection begins in a buffer that holds both
    return (
        grad_x if wanted[0] else None,
        grad_weight[:width] if wanted[1] else None,
        grad_weight.narrow(0, second if wanted[1] else 0, width) if wanted[2] else None,
        grad_down if wanted[3] else None,
        grad_bias[:width] if wanted[4] else None,
        grad_bias.narrow(0, second if wanted[4] else 0, width) if wanted[5] else None,
        grad_y.sum(0) if wanted[6] else None,
        *(None,) * 5,
    )


def _differentiable_gradients(ctx, inputs, grad_y):
    # Views, so that two arguments that are one tensor still get a gradient each.
    inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    needed = [tensor for tensor, need in zip(inputs, ctx.needs_input_grad, strict=False) if need]
    with _without_autocast(grad_y.device.type):
        x, gate, up, down, *biases = inputs
        y = ffn_plain(x, gate, up, down, ctx.activation, *biases)
        found = iter(torch.autograd.grad(y, needed, grad_y, create_graph=True))
    return [next(found) if need else None for need in ctx.needs_input_grad[:7]]


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The same op without the dispatcher: what a custom op costs in Python, 0.2 ms a call, shows at small layers.

    Without a `setup_context` of its own too: torch would look up the signature of `forward` at every call.
    """

    @staticmethod
    def forward(ctx, *inputs):
        output = _run_forward(*inputs)
        _setup_context(ctx, inputs, output)
        return output

    backward = staticmethod(_gradients)


def _check(tensors, activation, recompute, backend, input_precision):
    x, gate, up, down = (tensors[name] for name in INPUTS[:4])
    activation_function(activation, gate is not None)
    OPERATION.check_name(backend)
    choose("recompute", recompute, RECOMPUTE)
    choose("input_precision", input_precision, INPUT_PRECISIONS)
    if x is None or up is None or down is None:
        raise UserError("x, up and down are needed; an ungated layer has gate=None and its projection in up")
    if x.dim() < 1 or up.dim() != 2:
        raise UserError(f"x has shape {tuple(x.shape)}, up {tuple(up.shape)}; needed: (..., d) and (width, d)")
    width, d = up.shape
    if x.shape[-1] != d:
        raise UserError(f"x has {x.shape[-1]} columns, up {d}; both must be the model dimension d")
    wanted = dict(gate=(width, d), down=(width, d), gate_bias=(width,), up_bias=(width,), down_bias=(d,))
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tensor is not None and tensor.shape != shape:
            raise UserError(
                f"{name} has shape {tuple(tensor.shape)}; with up (width, d) = {width, d} it must be {shape}"
            )
    if gate is None and tensors["gate_bias"] is not None:
        raise UserError("gate_bias came without a gate; give both or neither")
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise UserError(
                f"{name} is {tensor.dtype} on {tensor.device}, x is {x.dtype} on {x.device}; move one of them, or "
                "use torch.autocast"
            )


def _autocast(tensors):
    """Under torch.autocast, floating inputs in its dtype (float64 stays), as the library's own products have it."""
    x = tensors["x"]
    if x is None or not torch.is_autocast_enabled(x.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(x.device.type)
    eligible = (torch.float32, torch.bfloat16, torch.float16)
    return {name: t.to(dtype) if t is not None and t.dtype in eligible else t for name, t in tensors.items()}


def ffn(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    *,
    gate_bias: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    recompute: str | None = None,
    backend: str | None = None,
    input_precision: str = "ieee",
) -> torch.Tensor:
    """One feed-forward layer: (act(x gate^T + gate_bias) * (x up^T + up_bias)) down + down_bias.

    x: (..., d). gate, up, down: (width, d) each, any width from 0 up; gate=None for an ungated layer, act(x up^T) down.
    Biases: (width,), (width,), (d,) or None. All of one dtype (float32, float64, bfloat16, float16) and device, any
    strides. activation: a name of geowidth.ops.activation ("swiglu", "geglu", "geglu_tanh", "reglu", "silu", "gelu",
    "gelu_tanh", "relu", "relu2" and their Hugging Face aliases).

    recompute: None keeps g and u for backward; "gate_up" computes them again from x. backend: "native" (C++, CPU),
    "triton" (GPU) or "torch"; by default the first that can. input_precision: the least precise product allowed for
    float32 on a GPU: "ieee" (float32 throughout), "tf32x3" or "tf32"; on a CPU products are always float32.

    Returns y (..., d) in x's dtype. Under torch.autocast the inputs are cast first. Differentiable in every tensor,
    twice too (the second time by plain torch). Raises UserError for shapes, dtypes, devices or names that do not fit.
    """
    tensors = dict(x=x, gate=gate, up=up, down=down, gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias)
    tensors = {name: t if t is None else floating(name, t, dispatched=True) for name, t in tensors.items()}
    tensors = _autocast(tensors)
    _check(tensors, activation, recompute, backend, input_precision)
    inputs = list(tensors.values())
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    shape = inputs[0].shape
    inputs[0] = inputs[0].flatten(0, -2) if len(shape) > 1 else inputs[0][None]
    settings = (activation, keep, recompute is not None, backend, input_precision)
    plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in inputs if t is not None)
    if torch.compiler.is_compiling() or not plain or torch._C._are_functorch_transforms_active():
        run: Callable[..., Any] = _forward
    else:
        run = _Direct.apply if keep else _run_forward
    y, _, _ = run(*inputs, *settings)
    # As torch's own matmul does: a plain view would set off FSDP's warning about in-place writes to views.
    return torch.ops.aten._unsafe_view(y, shape)


def explain(
    tokens: int,
    dimension: int,
    width: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    chip: str = "sm_90",
) -> str:
    """What `ffn` does for one size, as text of a few lines.

    tokens, dimension, width: the size. dtype: of all tensors. device: "cpu" or "cuda". chip: for "cuda" the table's
    column, as "sm_90" (H100, H200); every other one is served by "other". Needs neither GPU nor Triton.
    """
    choose("device", device, ("cpu", "cuda"))
    choose("dtype", dtype, tuple(SCALARS))
    sizes = {"tokens": tokens, "dimension": dimension, "width": width}
    tokens, dimension, width = (whole(name, size, 0, MOST) for name, size in sizes.items())
    if device == "cuda":
        if dtype == torch.float64:
            return "library products around plain torch: the Triton kernels take no float64"
        from geowidth.kernels import tiles

        return tiles.explain(dimension, tokens, width, chip=chip, bits=dtype.itemsize * 8)
    empty = torch.empty(tokens, dimension, dtype=dtype, device="meta")
    problem = FeedForwardProblem(empty, None, empty, empty, None, None, None, None)
    product = product_dtype(empty, "cpu")
    rows = rows_per_block(problem, "cpu")
    elementwise = "plain torch" if why_not_native() else "the native activation kernels"
    return f"library products in {product} around {elementwise}, {rows} of {tokens} tokens at a time"
