"""From grad_y straight to grad_gate and grad_up: grad_h = grad_y down^T never reaches memory, and h is formed again.

grad_y (tokens, d), down (width, d); hidden buffers (tokens, ceil8(width)), with strides in groups of 8 elements.
The tile is finished in column slices: g, u and three results of a whole wide tile would not fit in registers.
"""

from geowidth.kernels.gate_up import constants, halves, load, product, row_pointers, tile_of_program, tile_offsets

import triton
import triton.language as tl
from geowidth.kernels import pointwise


@triton.jit
def finish(
    gradient, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_M: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """One column slice (BLOCK_M, SLICE) of the tile: read g and u, write their gradients and h."""
    columns = column + tl.arange(0, SLICE)
    mask = (row + tl.arange(0, BLOCK_M) < tokens)[:, None] & (columns < tl.cdiv(width, 8) * 8)[None, :]
    start, local = tile_offsets(row, column, hidden_stride8, BLOCK_M, SLICE)
    pair_start, pair_local = tile_offsets(row, column, pair_stride8, BLOCK_M, SLICE)
    kind = grad_up.dtype.element_ty
    u = tl.load(u_in + start + local, mask=mask, other=0.0).to(gradient.dtype)
    g = u
    if GATED:
        g = tl.load(g_in + start + local, mask=mask, other=0.0).to(gradient.dtype)
    dg, du, h = pointwise.backward(g, u, gradient, ACTIVATION, GATED)
    # Padding becomes zero, whatever g and u have there: products over hidden units may then read it.
    dg = tl.where((columns < width)[None, :], dg, 0.0)
    du = tl.where((columns < width)[None, :], du, 0.0)
    if GATED:
        tl.store(grad_gate + pair_start + pair_local, dg.to(kind), mask=mask)
    tl.store(grad_up + pair_start + pair_local, du.to(kind), mask=mask)
    if HIDDEN:
        tl.store(h_out + start + local, h.to(kind), mask=mask)


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


@triton.jit
def finish_four(
    block, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The four quarters of a block of the tile, from left to right."""
    left, right = halves(block, ROWS, COLUMNS)
    finish_both(left, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8, pair_stride8,
                ACTIVATION, GATED, HIDDEN, ROWS, COLUMNS // 2)  # fmt: skip
    finish_both(right, row, column + COLUMNS // 2, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
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
    y_tile = row_pointers(grad_y, row, tokens, d8, BLOCK_M)[:, None] + inner[None, :]
    weight_tile = row_pointers(down, column, width, d8, BLOCK_N)[None, :] + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    for k in range(0, d, BLOCK_K):
        a = load(y_tile + k, inner[None, :], d - k, EVEN_K)
        b = load(weight_tile + k, inner[:, None], d - k, EVEN_K)
        total = product(a, b, total, UPCAST, PRECISION)
    if SLICES == 8:
        left, right = halves(total, BLOCK_M, BLOCK_N)
        finish_four(left, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
                    pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N // 2)  # fmt: skip
        finish_four(right, row, column + BLOCK_N // 2, g_in, u_in, grad_gate, grad_up, h_out, tokens, width,
                    hidden_stride8, pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N // 2)  # fmt: skip
    elif SLICES == 4:
        finish_four(total, row, column, g_in, u_in, grad_gate, grad_up, h_out, tokens, width, hidden_stride8,
                    pair_stride8, ACTIVATION, GATED, HIDDEN, BLOCK_M, BLOCK_N)  # fmt: skip
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
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
