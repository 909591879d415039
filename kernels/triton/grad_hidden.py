"""From grad_y straight to grad_gate and grad_up: grad_h = grad_y down^T never reaches memory, and h is formed again.

grad_y (tokens, d), down (width, d); hidden buffers (tokens, ceil8(width)), with strides in groups of 8 elements.
The tile is finished in column slices: g, u and three results of a whole wide tile would not fit in registers.
"""

import triton
import triton.language as tl

from geowidth.kernels import pointwise
from geowidth.kernels.gate_up import constants, product, tile_of_program


@triton.jit
def finish(
    gradient, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_M: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """One column slice (BLOCK_M, SLICE) of the tile: read g and u, write their gradients and h."""
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, SLICE)
    mask = (rows < tokens)[:, None] & (columns < tl.cdiv(width, 8) * 8)[None, :]
    offsets = rows.to(tl.int64)[:, None] * (hidden_stride8 * 8) + columns[None, :]
    pair_offsets = rows.to(tl.int64)[:, None] * (pair_stride8 * 8) + columns[None, :]
    kind = grad_up.dtype.element_ty
    u = tl.load(u_in + offsets, mask=mask, other=0.0).to(gradient.dtype)
    g = u
    if GATED:
        g = tl.load(g_in + offsets, mask=mask, other=0.0).to(gradient.dtype)
    dg, du, h = pointwise.backward(g, u, gradient, ACTIVATION, GATED)
    # Padding becomes zero, whatever g and u have there: products over hidden units may then read it.
    dg = tl.where((columns < width)[None, :], dg, 0.0)
    du = tl.where((columns < width)[None, :], du, 0.0)
    if GATED:
        tl.store(grad_gate + pair_offsets, dg.to(kind), mask=mask)
    tl.store(grad_up + pair_offsets, du.to(kind), mask=mask)
    if HIDDEN:
        tl.store(h_out + offsets, h.to(kind), mask=mask)


@triton.jit
def halves(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a (ROWS, COLUMNS) block."""
    return tl.split(tl.permute(tl.reshape(block, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def finish_both(
    block, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The left and then the right half of a block of the tile."""
    left, right = halves(block, ROWS, COLUMNS)
    finish(left, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
           ACTIVATION, GATED, HIDDEN, ROWS, COLUMNS // 2)  # fmt: skip
    finish(right, row, column + COLUMNS // 2, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
           pair_stride8, ACTIVATION, GATED, HIDDEN, ROWS, COLUMNS // 2)  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "width", "d8", "hidden_stride8", "pair_stride8"])
def grad_hidden_kernel(
    grad_y, down, g_in, u_in, grad_gate, grad_up, h_out,
    tokens, width, d8, hidden_stride8, pair_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, SLICES: tl.constexpr,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of_program(tokens, width, BLOCK_M, BLOCK_N, GROUP)
    d = d8 * 8
    inner = tl.arange(0, BLOCK_K)
    y_rows = tl.minimum(row + tl.arange(0, BLOCK_M), tokens - 1).to(tl.int64) * d
    weight_rows = tl.minimum(column + tl.arange(0, BLOCK_N), width - 1).to(tl.int64) * d
    y_tile = grad_y + y_rows[:, None] + inner[None, :]
    weight_tile = down + weight_rows[None, :] + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    for k in range(0, d, BLOCK_K):
        if EVEN_K:
            a = tl.load(y_tile + k)
            b = tl.load(weight_tile + k)
        else:
            left = inner < d - k
            a = tl.load(y_tile + k, mask=left[None, :], other=0.0)
            b = tl.load(weight_tile + k, mask=left[:, None], other=0.0)
        total = product(a, b, total, UPCAST, PRECISION)
    if SLICES == 4:
        left_half, right_half = halves(total, BLOCK_M, BLOCK_N)
        finish_both(left_half, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
                    pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N // 2)  # fmt: skip
        finish_both(right_half, row, column + BLOCK_N // 2, g_in, u_in, grad_gate, grad_up, h_out, tokens, width,
                    hidden_stride8, pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N // 2)  # fmt: skip
    elif SLICES == 2:
        finish_both(total, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
                    pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N)  # fmt: skip
    else:
        finish(total, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
               ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N)  # fmt: skip


def run(tile, code, grad_y, down, g, u, grad_gate, grad_up, h, *, input_precision="ieee", interpreted=False):
    """Fill grad_gate and grad_up (one row stride) and, unless None, h (the row stride of g and u)."""
    (tokens, d), width = grad_y.shape, down.shape[0]
    grid = (triton.cdiv(tokens, tile.block_m) * triton.cdiv(width, tile.block_n),)
    grad_hidden_kernel[grid](
        grad_y, down, u if g is None else g, u, grad_up if grad_gate is None else grad_gate, grad_up,
        u if h is None else h,
        tokens, width, d // 8, u.stride(0) // 8, grad_up.stride(0) // 8,
        ACTIVATION=code, HIDDEN=h is not None, SLICES=tile.slices,
        **constants(tile, grad_y, g is not None, input_precision, interpreted, d),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
