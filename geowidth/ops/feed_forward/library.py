"""The feed-forward layer around the library's matrix products: the elementwise part is ours, the GEMMs are torch's.

Forward and backward of geowidth.ops.feed_forward for every device. Rows (tokens) go through in blocks, so what lies
between two products stays small and, on a CPU, in its caches; without gradients no full-size hidden buffer ever exists.

On a CPU, bfloat16 and float16 products are computed in float32 unless the processor has instructions for them: the
library's fallback is up to a hundred times slower than float32.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from geowidth.ops.activation.functions import ActivationFunction

# Tokens at a time on a CPU: enough that the library runs at full speed, few enough that a block stays small. Products
# of two-byte numbers need more, as the library lays out the weights anew at each call.
CPU_ROWS, CPU_ROWS_TWO_BYTES = 1024, 8192
EVERYTHING = slice(None)


class Problem(NamedTuple):
    """Inputs of one layer. x (tokens, d); gate, up, down (width, d), gate None when ungated; biases or None."""

    x: torch.Tensor
    gate: torch.Tensor | None
    up: torch.Tensor
    down: torch.Tensor
    gate_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    function: ActivationFunction
    input_precision: str = "ieee"

    @property
    def tokens(self):
        return self.x.shape[0]

    @property
    def width(self):
        return self.up.shape[0]

    @property
    def dimension(self):
        return self.x.shape[1]

    def prepared(self, dtype=None):
        """The same with every operand row-major, so that results do not depend on how inputs happened to lie, and with
        weights and biases, not x, in `dtype` (None: as they are)."""
        if dtype is None or dtype == self.x.dtype:
            ready = [t if t is None or t.is_contiguous() else t.contiguous() for t in self[:7]]
        else:
            ready = [self.x.contiguous(), *(None if t is None else t.to(dtype).contiguous() for t in self[1:7])]
        return Problem(*ready, *self[7:])


@dataclass(frozen=True)
class Needs:
    """Which gradients are wanted."""

    x: bool
    gate: bool
    up: bool
    down: bool
    gate_bias: bool
    up_bias: bool

    def slots(self, gated, bias=False):
        """Names of the projections whose weight (or bias) gradients share one buffer, in its order."""
        flags = {"gate": self.gate_bias if bias else self.gate, "up": self.up_bias if bias else self.up}
        return [name for name in (("gate", "up") if gated else ("up",)) if flags[name]]


def padded(width):
    """The row stride of a hidden buffer: width rounded up to a multiple of 8, so that every row starts aligned."""
    return -(-width // 8) * 8


def hidden_buffer(tokens, width, like, count=1):
    """An uninitialised buffer of `count` adjacent hidden matrices (tokens, width), each padded; see `part`."""
    return torch.empty(tokens, count * padded(width), dtype=like.dtype, device=like.device)


def part(buffer, width, index=0):
    """The `index`-th hidden matrix (tokens, width) of a buffer: a view with row stride count * padded(width)."""
    return buffer if buffer.shape[1] == width else buffer.narrow(1, index * padded(width), width)


def gradient_rows(slots, width):
    """Rows of a weight-gradient buffer holding `slots` projections one above the other."""
    return len(slots) * padded(width) if len(slots) > 1 else len(slots) * width


def without_padding(buffer, slots, width):
    """A gradient buffer of `gradient_rows`, the rows after each projection set to zero: no result holds chance bits."""
    if len(slots) > 1:
        for row in (width, padded(width) + width):
            buffer[row : row + padded(width) - width] = 0
    return buffer


@cache
def has_native_product(dtype):
    """Whether this processor multiplies matrices of a two-byte dtype with instructions made for it."""
    if dtype == torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def product_dtype(x, device=None):
    """The dtype in which the library multiplies x (on device type `device`, by default its own)."""
    on_cpu = (device or x.device.type) == "cpu"
    if on_cpu and x.dtype in (torch.bfloat16, torch.float16) and not has_native_product(x.dtype):
        return torch.float32
    return x.dtype


def float32_products(x, input_precision):
    """A context: the library's float32 products on a GPU at this precision, whatever the process-wide switch says."""
    if x.dtype != torch.float32 or x.device.type != "cuda":
        return nullcontext()
    return matmul_switch(input_precision == "tf32")


@contextmanager
def matmul_switch(tf32):
    """Torch's own switch for float32 products on a GPU, on or off, and back to what it was."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # the older name may not be touched where the newer one was set
        name, value = "fp32_precision", "tf32" if tf32 else "ieee"
    else:
        name, value = "allow_tf32", tf32
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def linear(x, weight, bias, out):
    """out = x weight^T + bias, in place."""
    if bias is None:
        return torch.mm(x, weight.T, out=out)
    return torch.addmm(bias, x, weight.T, out=out)


def rows_per_block(problem, device=None):
    """How many tokens go through at a time: all on a GPU; on a CPU equal blocks of at most the sizes above."""
    device = device or problem.x.device.type
    if device != "cpu":
        return problem.tokens
    most = CPU_ROWS_TWO_BYTES if product_dtype(problem.x, device).itemsize == 2 else CPU_ROWS
    return -(-problem.tokens // max(1, -(-problem.tokens // most)))


def blocks(tokens, rows):
    """Slices of `rows` tokens each (the last may be shorter), one without bounds if that is all of them."""
    if rows >= tokens:
        return [EVERYTHING] if tokens else []
    return [slice(begin, min(begin + rows, tokens)) for begin in range(0, tokens, rows)]


def taken(tensor, block):
    """tensor[block], the tensor itself where that is all of it; None for None."""
    return tensor if tensor is None or block is EVERYTHING else tensor[block]


def forward(problem, elementwise, keep):
    """(y (tokens, d), g, u): g and u (tokens, width) are the projections if `keep`, else empty."""
    dtype = product_dtype(problem.x)
    wide = problem.prepared(dtype)
    x, width, tokens, gated = wide.x, wide.width, wide.tokens, wide.gate is not None
    rows = rows_per_block(wide)
    y = torch.empty_like(x)
    if keep:
        g = part(hidden_buffer(tokens, width, x), width) if gated else None
        u, h = (part(hidden_buffer(count, width, x), width) for count in (tokens, rows))
    else:  # in one piece: what an allocator takes and gives back at every call is then as much as it holds on to
        both = hidden_buffer(rows, width, x, 1 + gated)
        g, u = part(both, width) if gated else None, part(both, width, int(gated))
        h = g if gated else u
    scratch = hidden_buffer(rows, width, wide.up) if dtype != x.dtype else None
    for block in blocks(tokens, rows):
        first = first_rows(block)
        place = block if keep else first
        g_block, u_block, h_block = taken(g, place), taken(u, place), taken(h, first)
        project(wide, taken(x, block), g_block, u_block, scratch)
        elementwise.forward(problem.function, g_block, u_block, h_block)
        if dtype == x.dtype:
            linear(h_block, wide.down.T, wide.down_bias, taken(y, block))
        else:
            out = torch.empty_like(y[block], dtype=dtype)
            y[block] = linear(h_block.to(dtype), wide.down.T, wide.down_bias, out)
    return y, *(t if keep and t is not None else x.new_empty(0, 0) for t in (g, u))


def first_rows(block):
    """As many rows as `block` has, from the first on."""
    return block if block is EVERYTHING else slice(0, block.stop - block.start)


def project(wide, x, g, u, scratch):
    """g, u = x gate^T, x up^T (with biases), rounded to their dtype. wide: a Problem with weights in product_dtype."""
    if scratch is None:
        if g is not None:
            linear(x, wide.gate, wide.gate_bias, g)
        linear(x, wide.up, wide.up_bias, u)
        return
    x = x.to(wide.up.dtype)
    for weight, bias, out in ((wide.gate, wide.gate_bias, g), (wide.up, wide.up_bias, u)):
        if weight is not None:
            out.copy_(linear(x, weight, bias, part(scratch, wide.width)[: x.shape[0]]))


def backward(problem, grad_y, g, u, needs, elementwise):
    """Gradients of `forward`: (grad_x, grad_weight, grad_down, grad_bias), empty (0,) where nothing is needed.

    g, u: kept projections, or None to compute them again. grad_weight holds the projections of
    `needs.slots(gated)` one above the other, `gradient_rows` in all; grad_bias likewise.
    """
    return _Backward(problem, grad_y.contiguous(), needs, elementwise).run(g, u)


class _Backward:
    """One backward pass: buffers, and what one block of rows adds to them."""

    def __init__(self, problem, grad_y, needs, elementwise):
        self.dtype = product_dtype(problem.x)
        self.problem = problem = problem.prepared(self.dtype)
        self.grad_y, self.needs, self.elementwise = grad_y, needs, elementwise
        self.gated = problem.gate is not None
        self.slots, self.bias_slots = needs.slots(self.gated), needs.slots(self.gated, bias=True)
        width, d = problem.width, problem.dimension
        self.grad_x = torch.empty_like(problem.x) if needs.x else problem.x.new_empty(0)
        self.grad_weight = self._buffer(bool(self.slots), gradient_rows(self.slots, width), d)
        without_padding(self.grad_weight, self.slots, width)
        self.grad_down = self._buffer(needs.down, width, d)
        self.grad_bias = self._buffer(bool(self.bias_slots), gradient_rows(self.bias_slots, width))
        without_padding(self.grad_bias, self.bias_slots, width)

    def _buffer(self, needed, *shape):
        shape = shape if needed else (0,)
        make = torch.empty if self.problem.tokens else torch.zeros
        return make(shape, dtype=self.dtype, device=self.problem.x.device)

    def run(self, g, u):
        """The four gradients; see `backward`."""
        problem, width, tokens = self.problem, self.problem.width, self.problem.tokens
        # Two-byte gradients are summed over all tokens inside one product: adding blocks would round every time.
        rows = tokens if self.dtype.itemsize == 2 else rows_per_block(problem)
        like = self.problem.up
        again = u is None
        if again:
            recomputed = [part(hidden_buffer(rows, width, problem.x), width) for _ in range(1 + self.gated)]
            u, g = recomputed[0], recomputed[1] if self.gated else None
            scratch = hidden_buffer(rows, width, like) if self.dtype != problem.x.dtype else None
        pair = hidden_buffer(rows, width, like, 1 + self.gated)
        grad_hidden = part(hidden_buffer(rows, width, like), width)
        for block in blocks(tokens, rows):
            first = first_rows(block)
            place = first if again else block
            x, g_block, u_block = taken(problem.x, block), taken(g, place), taken(u, place)
            if again:
                project(problem, x, g_block, u_block, scratch)
            self._block(block, x, g_block, u_block, taken(pair, first), taken(grad_hidden, first))
        dtype = problem.x.dtype
        if self.dtype == dtype:
            return self.grad_x, self.grad_weight, self.grad_down, self.grad_bias
        return self.grad_x, self.grad_weight.to(dtype), self.grad_down.to(dtype), self.grad_bias.to(dtype)

    def _block(self, block, x, g, u, pair, grad_hidden):
        problem, width = self.problem, self.problem.width
        grad_y = taken(self.grad_y, block)
        if self.dtype != problem.x.dtype:
            x, g, u, grad_y = (None if t is None else t.to(self.dtype) for t in (x, g, u, grad_y))
        torch.mm(grad_y, problem.down.T, out=grad_hidden)
        parts = {"up": part(pair, width, int(self.gated)), "gate": part(pair, width) if self.gated else None}
        hidden = grad_hidden if self.needs.down else None  # overwrites what it was made from
        self.elementwise.backward(problem.function, g, u, grad_hidden, parts["gate"], parts["up"], hidden)
        anew = not block.start
        if self.needs.down:
            self._add(self.grad_down, hidden.T, grad_y, anew)
        for index, name in enumerate(self.slots):
            self._add(self._slot(self.grad_weight, index), parts[name].T, x, anew)
        for index, name in enumerate(self.bias_slots):
            total, slot = parts[name].sum(0), self._slot(self.grad_bias, index)
            slot.copy_(total) if anew else slot.add_(total)
        if self.needs.x:
            self._input_gradient(block, parts)

    def _slot(self, buffer, index):
        return buffer.narrow(0, index * padded(self.problem.width), self.problem.width)

    @staticmethod
    def _add(total, left, right, anew):
        """total = left right, or total += left right."""
        torch.mm(left, right, out=total) if anew else total.addmm_(left, right)

    def _input_gradient(self, block, parts):
        same = self.dtype == self.problem.x.dtype
        out = taken(self.grad_x, block)
        wide = out if same else torch.empty_like(out, dtype=self.dtype)
        if self.gated:
            torch.mm(parts["gate"], self.problem.gate, out=wide)
            wide.addmm_(parts["up"], self.problem.up)
        else:
            torch.mm(parts["up"], self.problem.up, out=wide)
        if not same:
            out.copy_(wide)
