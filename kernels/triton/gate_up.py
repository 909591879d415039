"""h = act(x gate^T) * (x up^T): both projections in one pass over x, the activation before anything is written.

x (tokens, d), gate and up (width, d), hidden buffers (tokens, ceil8(width)). Strides and d come in groups of 8 elements,
which tells the compiler that every row starts on 16 bytes at every width. Rows beyond the last token or hidden unit
read the last one instead of being masked: what they give lies in padding or is not stored.
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


@triton.jit(do_not_specialize=["tokens", "width", "d8", "x_stride8", "hidden_stride8"])
def gate_up_kernel(
    x, gate, up, gate_bias, up_bias, g_out, u_out, h_out,
    tokens, width, d8, x_stride8, hidden_stride8,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, GATE_BIAS: tl.constexpr, UP_BIAS: tl.constexpr, KEEP: tl.constexpr,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of_program(tokens, width, BLOCK_M, BLOCK_N, GROUP)
    d = d8 * 8
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_rows = tl.minimum(rows, tokens - 1).to(tl.int64) * (x_stride8 * 8)
    weight_rows = tl.minimum(columns, width - 1).to(tl.int64) * d
    x_tile = x + x_rows[:, None] + inner[None, :]
    weight_offsets = weight_rows[None, :] + inner[:, None]
    g = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    u = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    for k in range(0, d, BLOCK_K):
        if EVEN_K:
            a = tl.load(x_tile + k)
            b = tl.load(up + weight_offsets + k)
        else:
            left = inner < d - k
            a = tl.load(x_tile + k, mask=left[None, :], other=0.0)
            b = tl.load(up + weight_offsets + k, mask=left[:, None], other=0.0)
        u = product(a, b, u, UPCAST, PRECISION)
        if GATED:
            if EVEN_K:
                c = tl.load(gate + weight_offsets + k)
            else:
                c = tl.load(gate + weight_offsets + k, mask=left[:, None], other=0.0)
            g = product(a, c, g, UPCAST, PRECISION)
    inside = columns < width
    if UP_BIAS:
        u += tl.load(up_bias + columns, mask=inside, other=0.0).to(WIDE)[None, :]
    if GATE_BIAS:
        g += tl.load(gate_bias + columns, mask=inside, other=0.0).to(WIDE)[None, :]
    kind = h_out.dtype.element_ty
    # Rounded before the activation, as they are kept: backward then differentiates exactly what forward computed.
    g_kept, u_kept = g.to(kind), u.to(kind)
    if GATED:
        h = pointwise.activate(g_kept.to(WIDE), ACTIVATION) * u_kept.to(WIDE)
    else:
        h = pointwise.activate(u_kept.to(WIDE), ACTIVATION)
    offsets = rows.to(tl.int64)[:, None] * (hidden_stride8 * 8) + columns[None, :]
    mask = (rows < tokens)[:, None] & (columns < tl.cdiv(width, 8) * 8)[None, :]
    tl.store(h_out + offsets, h.to(kind), mask=mask)
    if KEEP:
        if GATED:
            tl.store(g_out + offsets, g_kept, mask=mask)
        tl.store(u_out + offsets, u_kept, mask=mask)


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
        **constants(tile, x, gate is not None, input_precision, interpreted, d),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
