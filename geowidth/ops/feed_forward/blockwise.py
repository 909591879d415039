"""The feed-forward layer around the library's matrix products: the elementwise part is ours, the GEMMs are torch's.

Forward and backward of geowidth.ops.feed_forward for every device. Rows (tokens) go through in blocks, so what lies
between two products stays small and, on a CPU, in its caches; without gradients no full-size hidden buffer ever exists.

On a CPU, bfloat16 and float16 products are computed in float32 unless the processor has instructions for them: the
library's fallback is up to a hundred times slower than float32.
"""

import torch

from geowidth.ops.feed_forward.problem import gradient_rows, hidden_buffer, padded, part, without_padding
from geowidth.ops.products import float32_products, product_dtype

# Tokens at a time on a CPU: enough that the library runs at full speed, few enough that a block stays small. Products
# of two-byte numbers need more, as the library lays out the weights anew at each call.
CPU_ROWS, CPU_ROWS_TWO_BYTES = 1024, 8192
EVERYTHING = slice(None)


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
    """g, u = x gate^T, x up^T (with biases), rounded to their dtype. wide: its weights are in product_dtype."""
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
            x, g, u = (None if t is None else t.to(self.dtype) for t in (x, g, u))
            grad_y = grad_y.to(self.dtype)
        torch.mm(grad_y, problem.down.T, out=grad_hidden)
        parts = {"up": part(pair, width, int(self.gated)), "gate": part(pair, width) if self.gated else None}
        hidden = grad_hidden if self.needs.down else None  # overwrites what it was made from
        self.elementwise.backward(problem.function, g, u, grad_hidden, parts["gate"], parts["up"], hidden)
        anew = not block.start
        if hidden is not None:
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


class Blockwise:
    """The layer in blocks of rows around one elementwise implementation."""

    def __init__(self, elementwise):
        self.elementwise = elementwise

    def forward(self, problem, keep):
        """As the function `forward`."""
        with float32_products(problem.x, problem.input_precision):
            return forward(problem, self.elementwise, keep)

    def backward(self, problem, grad_y, g, u, needs):
        """As the function `backward`."""
        with float32_products(problem.x, problem.input_precision):
            return backward(problem, grad_y, g, u, needs, self.elementwise)
