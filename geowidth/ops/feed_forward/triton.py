"""Forward and backward of the feed-forward layer on a GPU: fused Triton kernels where the tile table says that they
pay, library products around our elementwise kernels elsewhere. Also runs in Triton's interpreter, on CPU tensors.
"""

import os
from functools import cache

import torch

from geowidth.kernels import activation, grad_hidden, grad_input, tiles
from geowidth.kernels import gate_up as gate_up_kernel
from geowidth.ops.feed_forward.blockwise import linear
from geowidth.ops.feed_forward.problem import gradient_rows, hidden_buffer, part, without_padding
from geowidth.ops.triton_support import interpreted


@cache
def _chip(device_index):
    return tiles.chip_name(torch.cuda.get_device_capability(device_index))


def choose(product, problem):
    """The Tile of a fused kernel, or None for the library. GEOWIDTH_FFN_FUSED=always or never overrides the table."""
    d, tokens, width, bits = problem.dimension, problem.tokens, problem.width, problem.x.element_size() * 8
    chip = _chip(problem.x.device.index) if problem.x.is_cuda else "other"
    mode = os.environ.get("GEOWIDTH_FFN_FUSED", "")
    if mode == "never" or not (d and width):
        return None
    if mode == "always" and d % 8 == 0:
        if bits != 16:
            return tiles.FLOAT32[product]
        return next(rule.tile for rule in tiles.CHIPS[chip] if rule.product == product and tokens >= rule.tokens)
    return tiles.choose(product, chip, d, tokens, width, bits)[0]


def _options(problem):
    return dict(input_precision=problem.input_precision, interpreted=interpreted())


def _project(problem, g, u):
    linear(problem.x, problem.up, problem.up_bias, u)
    if g is not None:
        linear(problem.x, problem.gate, problem.gate_bias, g)


def forward(problem, keep):
    """(y (tokens, d), g, u): g and u (tokens, width) if `keep`, else empty."""
    problem = problem.prepared()
    x, width, gated, code = problem.x, problem.width, problem.gate is not None, problem.function.code
    y = torch.empty_like(x)

    def buffer(present=True):
        return part(hidden_buffer(problem.tokens, width, x), width) if present else None

    def results(g, u):
        return (y, *(t if keep and t is not None else x.new_empty(0, 0) for t in (g, u)))

    if problem.tokens == 0 or width == 0:
        y.zero_() if problem.down_bias is None else y.copy_(problem.down_bias.expand_as(y))
        return results(buffer(gated), buffer())
    tile = choose("gate_up keep" if keep else "gate_up", problem)
    g = buffer(gated and (keep or tile is None))
    u = buffer(keep or tile is None)
    h = buffer() if keep or tile is not None else (g if gated else u)
    if tile is None:
        _project(problem, g, u)
        activation.forward(code, g, u, h, padded=True)
    else:
        biases = problem.gate_bias, problem.up_bias
        gate_up_kernel.run(tile, code, x, problem.gate, problem.up, *biases, g, u, h, **_options(problem))
    linear(h, problem.down.T, problem.down_bias, y)
    return results(g, u)


def backward(problem, grad_y, g, u, needs):
    """Gradients as geowidth.ops.feed_forward.blockwise.backward gives them."""
    problem, grad_y = problem.prepared(), grad_y.contiguous()
    x, width, gated = problem.x, problem.width, problem.gate is not None
    slots, bias_slots = needs.slots(gated), needs.slots(gated, bias=True)
    if problem.tokens == 0 or width == 0:
        shapes = (
            x.shape if needs.x else (0,),
            (gradient_rows(slots, width), problem.dimension) if slots else (0,),
            (width, problem.dimension) if needs.down else (0,),
            (gradient_rows(bias_slots, width),) if bias_slots else (0,),
        )
        return tuple(x.new_zeros(shape) for shape in shapes)
    if u is None:
        u = part(hidden_buffer(problem.tokens, width, x), width)
        g = part(hidden_buffer(problem.tokens, width, x), width) if gated else None
        _project(problem, g, u)
    pair = hidden_buffer(problem.tokens, width, x, 1 + gated)
    parts = {"up": part(pair, width, int(gated)), "gate": part(pair, width) if gated else None}
    h = _hidden_gradients(problem, grad_y, g, u, parts, needs.down)
    grad_weight = _weight_gradient(x, pair, parts, slots, gated)
    grad_down = torch.mm(h.T, grad_y) if needs.down else x.new_empty(0)
    grad_bias = x.new_empty(0)
    if bias_slots:
        grad_bias = pair.sum(0) if len(bias_slots) == 1 + gated else parts[bias_slots[0]].sum(0)
        grad_bias = without_padding(grad_bias[: gradient_rows(bias_slots, width)], bias_slots, width)
    grad_x = _input_gradient(problem, parts) if needs.x else x.new_empty(0)
    return grad_x, grad_weight, grad_down, grad_bias


def _hidden_gradients(problem, grad_y, g, u, parts, need_hidden):
    """Fill `parts` with the gradients of both projections; returns h, or None when it is not needed."""
    code, width = problem.function.code, problem.width
    tile = choose("grad_hidden", problem)
    buffer = None
    if need_hidden or tile is None:
        buffer = part(hidden_buffer(problem.tokens, width, problem.x), width)
    h = buffer if need_hidden else None
    if tile is None:
        torch.mm(grad_y, problem.down.T, out=buffer)
        activation.backward(code, g, u, buffer, parts["gate"], parts["up"], h, padded=True)
    else:
        grad_hidden.run(
            tile, code, grad_y, problem.down, g, u, parts["gate"], parts["up"], h, **_options(problem)
        )  # fmt: skip
    return h


def _weight_gradient(x, pair, parts, slots, gated):
    if not slots:
        return x.new_empty(0)
    if len(slots) == 1 + gated:  # both at once: the buffers are adjacent, so this is one product
        total, width = torch.mm(pair.T, x), parts["up"].shape[1]
        return without_padding(total, slots, width) if gated else total[:width]
    return torch.mm(parts[slots[0]].T, x)


def _input_gradient(problem, parts):
    tile = choose("grad_input", problem)
    if tile is None:
        if parts["gate"] is None:
            return torch.mm(parts["up"], problem.up)
        return torch.mm(parts["gate"], problem.gate).addmm_(parts["up"], problem.up)
    grad_x = torch.empty_like(problem.x)
    grad_input.run(tile, parts["gate"], parts["up"], problem.gate, problem.up, grad_x, **_options(problem))
    return grad_x
