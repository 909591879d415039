"""grad_x = grad_gate gate + grad_up up in one accumulator, rounded once: for layers so narrow that writing and reading
grad_x a second time costs more than a library product gains.

grad_gate, grad_up (tokens, ceil8(width)) with zero padding, gate, up (width, d); strides in groups of 8 elements.
"""

from geowidth.kernels.gate_up import constants, product, row_pointers, tile_of_program, tile_offsets

import triton
import triton.language as tl


@triton.jit
def add_products(
    total, gradient_rows, weight, weight_columns, width, d,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """total + gradient weight over all hidden units; those beyond the width count as zero, as their padding does."""
    inner = tl.arange(0, BLOCK_K)
    for k in range(0, width, BLOCK_K):
        units = k + inner
        # Masked in groups of 8, which keeps the accesses wide: the gradient's padding is zero, the weight's mask exact.
        a = tl.load(gradient_rows[:, None] + units[None, :], mask=(units < tl.cdiv(width, 8) * 8)[None, :],
                    other=0.0)  # fmt: skip
        b = tl.load(weight + units.to(tl.int64)[:, None] * d + weight_columns[None, :], mask=(units < width)[:, None],
                    other=0.0)  # fmt: skip
        total = product(a, b, total, UPCAST, PRECISION)
    return total


@triton.jit(do_not_specialize=["tokens", "width", "d8", "pair_stride8"])
def grad_input_kernel(
    grad_gate, grad_up, gate, up, grad_x,
    tokens, width, d8, pair_stride8,
    GATED: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    d = d8 * 8
    row, column = tile_of_program(tokens, d, BLOCK_M, BLOCK_N, GROUP)
    groups = tl.arange(0, BLOCK_N)
    columns = tl.where(column + groups < d, column + groups, 0)
    columns = tl.max_contiguous(tl.multiple_of(columns, 8), 8)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=WIDE)
    if GATED:
        rows = row_pointers(grad_gate, row, tokens, pair_stride8, BLOCK_M)
        total = add_products(total, rows, gate, columns, width, d, UPCAST, PRECISION, BLOCK_K)
    rows = row_pointers(grad_up, row, tokens, pair_stride8, BLOCK_M)
    total = add_products(total, rows, up, columns, width, d, UPCAST, PRECISION, BLOCK_K)
    start, local = tile_offsets(row, column, d8, BLOCK_M, BLOCK_N)
    mask = (row + tl.arange(0, BLOCK_M) < tokens)[:, None] & (column + groups < d)[None, :]
    tl.store(grad_x + start + local, total.to(grad_x.dtype.element_ty), mask=mask)


def run(tile, grad_gate, grad_up, gate, up, grad_x, *, input_precision="ieee", interpreted=False):
    """Fill grad_x (tokens, d), contiguous."""
    (tokens, d), width = grad_x.shape, up.shape[0]
    grid = (triton.cdiv(tokens, tile.block_m) * triton.cdiv(d, tile.block_n),)
    grad_input_kernel[grid](
        grad_up if grad_gate is None else grad_gate, grad_up, up if gate is None else gate, up, grad_x,
        tokens, width, d // 8, grad_up.stride(0) // 8,
        **constants(tile, grad_x, grad_gate is not None, input_precision, interpreted, d),
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
