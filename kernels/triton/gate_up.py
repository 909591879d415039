"""h = act(x gate^T) * (x up^T): both projections in one pass over x, the activation before anything is written.

x (tokens, d), gate and up (width, d), hidden buffers (tokens, ceil8(width)). Strides and d come in groups of 8
elements, which tells the compiler that every row starts on 16 bytes at every width. Rows beyond the last token or
hidden unit read the last one instead of being masked: what they give lies in padding or is not stored.
"""

import triton
import triton.language as tl
from geowidth.kernels import pointwise


@triton.jit
def tile_of_program(rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """(first row, first column) of this program's tile: GROUP tiles down, then across, so that operands stay in L2."""
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    per_group = GROUP * tiles_n
    first = (tl.program_id(0) // per_group) * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    within = tl.program_id(0) % per_group
    return (first + within % size) * BLOCK_M, (within // size) * BLOCK_N


@triton.jit
def product(a, b, accumulator, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """accumulator + a b. UPCAST: the interpreter multiplies two-byte numbers as raw bits, so they are widened first."""
    if UPCAST:
        a, b = a.to(accumulator.dtype), b.to(accumulator.dtype)
    return tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)


@triton.jit
def load(pointers, inner, left, EVEN: tl.constexpr):
    """What pointers point to; unless EVEN, zero where the inner index has reached `left`."""
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inner < left, other=0.0)


@triton.jit
def row_pointers(matrix, row, rows, stride8, COUNT: tl.constexpr):
    """Pointers (COUNT,) to rows from `row` on; those beyond the last of `rows` point to the last."""
    stride = stride8 * 8
    local = tl.minimum(tl.arange(0, COUNT), rows - 1 - row)
    return matrix + row.to(tl.int64) * stride + local * stride


@triton.jit
def tile_offsets(row, column, stride8, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(offset of the tile's first element in 64 bits, offsets (ROWS, COLUMNS) within it in 32)."""
    stride = stride8 * 8
    local = tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]
    return row.to(tl.int64) * stride + column, local


@triton.jit
def halves(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a (ROWS, COLUMNS) block."""
    return tl.split(tl.permute(tl.reshape(block, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def finish(
    g, u, row, column, gate_bias, up_bias, g_out, u_out, h_out, tokens, width, hidden_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, GATE_BIAS: tl.constexpr, UP_BIAS: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Bias, activation and stores of one block (ROWS, COLUMNS) of both products."""
    columns = column + tl.arange(0, COLUMNS)
    if UP_BIAS:
        u += tl.load(up_bias + columns, mask=columns < width, other=0.0).to(u.dtype)[None, :]
    if GATE_BIAS:
        g += tl.load(gate_bias + columns, mask=columns < width, other=0.0).to(g.dtype)[None, :]
    kind = h_out.dtype.element_ty
    # Rounded before the activation, as they are kept: backward then differentiates exactly what forward computed.
    g_kept, u_kept = g.to(kind), u.to(kind)
    if GATED:
        h = pointwise.activate(g_kept.to(u.dtype), ACTIVATION) * u_kept.to(u.dtype)
    else:
        h = pointwise.activate(u_kept.to(u.dtype), ACTIVATION)
    start, local = tile_offsets(row, column, hidden_stride8, ROWS, COLUMNS)
    # Masked in groups of 8, padding included: a bound at an odd width would force two-byte stores.
    mask = (row + tl.arange(0, ROWS) < tokens)[:, None] & (columns < tl.cdiv(width, 8) * 8)[None, :]
    if KEEP:
        if GATED:
            tl.store(g_out + start + local, g_kept, mask=mask)
        tl.store(u_out + start + local, u_kept, mask=mask)
    tl.store(h_out + start + local, h.to(kind), mask=mask)


@triton.jit(do_not_specialize=["tokens", "width", "d8", "x_stride8", "hidden_stride8"])
def gate_up_kernel(
    x, gate, up, gate_bias, up_bias, g_out, u_out, h_out,
    tokens, width, d8, x_stride8, hidden_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, GATE_BIAS: tl.constexpr, UP_BIAS: tl.constexpr, KEEP: tl.constexpr,
    SLICES: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of_program(tokens, width, BLOCK_M, BLOCK_N, GROUP)
    d = d8 * 8
    inner = tl.arange(0, BLOCK_K)
    x_tile = row_pointers(x, row, tokens, x_stride8, BLOCK_M)[:, None] + inner[None, :]
    up_tile = row_pointers(up, column, width, d8, BLOCK_N)[None, :] + inner[:, None]
    gate_tile = row_pointers(gate, column, width, d8, BLOCK_N)[None, :] + inner[:, None]
    g = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    u = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    for k in range(0, d, BLOCK_K):
        left = d - k
        a = load(x_tile + k, inner[None, :], left, EVEN_K)
        u = product(a, load(up_tile + k, inner[:, None], left, EVEN_K), u, UPCAST, PRECISION)
        if GATED:
            g = product(a, load(gate_tile + k, inner[:, None], left, EVEN_K), g, UPCAST, PRECISION)
    if SLICES == 2:
        g_left, g_right = halves(g, BLOCK_M, BLOCK_N)
        u_left, u_right = halves(u, BLOCK_M, BLOCK_N)
        finish(g_left, u_left, row, column, gate_bias, up_bias, g_out, u_out, h_out, tokens, width, hidden_stride8,
               ACTIVATION, GATED, GATE_BIAS, UP_BIAS, KEEP, BLOCK_M, BLOCK_N // 2)  # fmt: skip
        finish(g_right, u_right, row, column + BLOCK_N // 2, gate_bias, up_bias, g_out, u_out, h_out, tokens, width,
               hidden_stride8, ACTIVATION, GATED, GATE_BIAS, UP_BIAS, KEEP, BLOCK_M, BLOCK_N // 2)  # fmt: skip
    else:
        finish(g, u, row, column, gate_bias, up_bias, g_out, u_out, h_out, tokens, width, hidden_stride8,
               ACTIVATION, GATED, GATE_BIAS, UP_BIAS, KEEP, BLOCK_M, BLOCK_N)  # fmt: skip


def constants(tile, x, gated, input_precision, interpreted, d):
    """Compile-time constants that all three products share."""
    wide = tl.float64 if x.element_size() == 8 else tl.float32
    return dict(
        GATED=gated, EVEN_K=d % tile.block_k == 0, UPCAST=interpreted, PRECISION=input_precision, WIDE=wide,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP=tile.group,
    )  # fmt: skip


def run(tile, code, x, gate, up, gate_bias, up_bias, g, u, h, *, input_precision="ieee", interpreted=False):
    """Fill h (tokens, width) and, unless u is None, g and u. All three share one padded row stride."""
    (tokens, d), width = x.shape, up.shape[0]
    grid = (triton.cdiv(tokens, tile.block_m) * triton.cdiv(width, tile.block_n),)
    gate_up_kernel[grid](
        x, up if gate is None else gate, up, up if gate_bias is None else gate_bias, up if up_bias is None else up_bias,
        h if g is None else g, h if u is None else u, h,
        tokens, width, d // 8, d // 8, h.stride(0) // 8,
        ACTIVATION=code, GATE_BIAS=gate_bias is not None, UP_BIAS=up_bias is not None, KEEP=u is not None,
        SLICES=tile.slices,
        **constants(tile, x, gate is not None, input_precision, interpreted, d),
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
