"""Distances of three geometries from one Gram matrix: the twins of kernels/cuda/distances.cu.

epilogue    one pass over the Gram matrix gives every matrix that is wanted; of a symmetric one a tile above the
            diagonal is computed once and written twice. It flags the tiles that hold near pairs, those whose distance
            the Gram matrix has lost to cancellation.
refine      near pairs of the flagged tiles, again from the raw rows in float64: pair by pair where a tile has few, the
            whole tile together where it has many. Other tiles cost one load.

The formulas are those of csrc/geometry/{raw,spherical,hyperbolic,rows}.h. Everything before the last step is float64.
"""

import torch

import triton
import triton.language as tl
from geowidth.kernels import elementary

# Sizes chosen by counting bytes and registers on data sheets; not yet measured on a card.
TILE = 64  # rows and columns of a tile of `epilogue`
PART = 32  # rows and columns of a program of `refine`
FEW = 32  # near pairs of a part up to which they are taken one by one
COLUMNS = 1024  # elements of two rows that a step of the one-by-one loop takes
WARPS = {"epilogue": 8, "refine": 4}


# ---------------------------------------------------------------- which tile


@triton.jit
def tile_of_program(program, n, m, SYMMETRIC: tl.constexpr, TILE: tl.constexpr):
    """(tile row, tile column, whether there is one). Symmetric: the tiles on and above the diagonal, two rows of them,
    one from each end, folded into one row of equal length."""
    columns = tl.cdiv(m, TILE)
    if SYMMETRIC:
        row, column = program // (columns + 1), program % (columns + 1)
        wanted = (column < columns - row) | (row != columns - 1 - row)
        second = column >= columns - row
        column = tl.where(second, column - 1, row + column)
        row = tl.where(second, columns - 1 - row, row)
    else:
        row, column = program // columns, program % columns
        wanted = row < tl.cdiv(n, TILE)
    return row, column, wanted


def programs(n, m, symmetric):
    """How many programs `tile_of_program` spreads the tiles over."""
    rows, columns = triton.cdiv(n, TILE), triton.cdiv(m, TILE)
    return triton.cdiv(columns, 2) * (columns + 1) if symmetric else rows * columns


@triton.jit
def offsets(row, column, stride, SIZE: tl.constexpr):
    """(offset of a tile's first element in 64 bits, offsets (SIZE, SIZE) within it in 32)."""
    local = tl.arange(0, SIZE)
    return row.to(tl.int64) * stride + column, local[:, None] * stride + local[None, :]


# ---------------------------------------------------------------- formulas


@triton.jit
def raw_square(gram, square_x, square_y, near):
    """(|x - y|^2, whether the Gram form has lost digits)."""
    whole = square_x[:, None] + square_y[None, :]
    square = whole - (gram + gram)
    return square, square < near * whole


@triton.jit
def half_square(gram, square_x, square_y, near):
    """(h = sin^2(t/2), t <= pi/2 the angle of the two lines, whether the Gram form has lost digits)."""
    inverse = (1.0 / tl.sqrt(square_x))[:, None] * (1.0 / tl.sqrt(square_y))[None, :]
    half = 0.5 - 0.5 * tl.abs(gram * inverse)
    return half, half < 0.5 * near


@triton.jit
def raw_distance(square, KIND: tl.constexpr):
    """The root, in float32 by way of exact powers of two where the square is out of its range."""
    if KIND == tl.float64:
        return tl.sqrt(square)
    else:
        large, small = square > 1.2676506002282294e30, square < 7.888609052210118e-31  # 2^100, 2^-100
        forth = tl.where(large, 6.842277657836021e-49, tl.where(small, 1.6069380442589903e60, 1.0))  # 2^-160, 2^200
        back = tl.where(large, 1.2089258196146292e24, tl.where(small, 7.888609052210118e-31, 1.0))  # 2^80, 2^-100
        return tl.sqrt_rn((square * forth).to(tl.float32)) * back.to(tl.float32)


@triton.jit
def spherical_distance(half, opposite):
    """The angle in [0, pi]; pi minus an angle is formed with the digits of pi that the dtype lacks."""
    angle = 2.0 * elementary.arcsine_of_root(half)
    if half.dtype == tl.float64:
        rest = 3.141592653589793 - (angle - 1.22464679914735318e-16)
    else:
        rest = 3.14159274101257324 - (angle + 8.74227766e-8)
    return tl.where(opposite, rest, angle)


@triton.jit
def hyperbolic_distance(half, opposite, scale):
    chord = elementary.square_root(tl.where(opposite, 1.0 - half, half))  # half of it
    return 2.0 * elementary.arcsinh((scale + scale) * chord)


# ---------------------------------------------------------------- epilogue


@triton.jit
def store_tile(out, value, null, row, column, n, m, SYMMETRIC: tl.constexpr, TILE: tl.constexpr):
    """Write a tile and, in a symmetric matrix, its mirror image; `null` (TILE,): what stands on the diagonal."""
    local = tl.arange(0, TILE)
    rows, columns = row + local < n, column + local < m
    if SYMMETRIC:
        if row == column:
            # A library's Gram matrix need not be symmetric in its last bits: both twins are the upper one.
            value = tl.where(local[:, None] < local[None, :], value, tl.trans(value))
            value = tl.where(local[:, None] == local[None, :], null[:, None], value)
        else:
            start, within = offsets(column, row, m, TILE)
            tl.store(out + start + within, tl.trans(value), mask=columns[:, None] & rows[None, :])
    start, within = offsets(row, column, m, TILE)
    tl.store(out + start + within, value, mask=rows[:, None] & columns[None, :])


@triton.jit
def candidates(row, column, n, m, SYMMETRIC: tl.constexpr, SIZE: tl.constexpr):
    """(SIZE, SIZE) mask of the pairs that may be near: inside, and above the diagonal of a symmetric matrix."""
    rows, columns = row + tl.arange(0, SIZE), column + tl.arange(0, SIZE)
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    if SYMMETRIC:
        inside = inside & (rows[:, None] < columns[None, :])
    return inside


@triton.jit
def load_squares(squares, first, count, SIZE: tl.constexpr):
    """Squared norms (SIZE,) from `first` on, 1 beyond the last."""
    index = first + tl.arange(0, SIZE)
    return tl.load(squares + index, mask=index < count, other=1.0)


@triton.jit
def load_gram(gram, row, column, n, m, SIZE: tl.constexpr):
    """A tile of the Gram matrix in float64, 0 outside."""
    rows, columns = row + tl.arange(0, SIZE), column + tl.arange(0, SIZE)
    start, within = offsets(row, column, m, SIZE)
    return tl.load(gram + start + within, mask=(rows < n)[:, None] & (columns < m)[None, :], other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["n"])
def epilogue_kernel(
    gram, square_x, square_y, scale, raw, spherical, hyperbolic, flags, n, m, near,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """gram (n, m) of any float type, square_x (n,), square_y (m,) float64, scale (1,) float64; outputs (n, m) of one
    float type; flags (programs,) int32: whether the tile holds a near pair."""
    row, column, wanted = tile_of_program(tl.program_id(0), n, m, SYMMETRIC, TILE)
    row, column = row * TILE, column * TILE
    some = 0
    if wanted:
        kind: tl.constexpr = raw.dtype.element_ty
        products = load_gram(gram, row, column, n, m, TILE)
        norms_x, norms_y = load_squares(square_x, row, n, TILE), load_squares(square_y, column, m, TILE)
        lost = tl.full((TILE, TILE), 0, tl.int1)
        null = (norms_x - norms_x).to(kind)  # NaN for a row that is not finite
        if RAW:
            square, unsafe = raw_square(products, norms_x, norms_y, near)
            lost = lost | unsafe
            value = raw_distance(tl.where(unsafe, 0.0, square), kind)
            store_tile(raw, value, null, row, column, n, m, SYMMETRIC, TILE)
        if SPHERICAL or HYPERBOLIC:
            half, unsafe = half_square(products, norms_x, norms_y, near)
            lost = lost | unsafe
            half, opposite = tl.where(unsafe, 0.0, half).to(kind), products < 0.0
            if SPHERICAL:
                store_tile(spherical, spherical_distance(half, opposite), null, row, column, n, m, SYMMETRIC, TILE)
            if HYPERBOLIC:
                value = hyperbolic_distance(half, opposite, tl.load(scale).to(kind))
                store_tile(hyperbolic, value, null, row, column, n, m, SYMMETRIC, TILE)
        some = tl.max((lost & candidates(row, column, n, m, SYMMETRIC, TILE)).to(tl.int32))
    tl.store(flags + tl.program_id(0), some)


# ---------------------------------------------------------------- refinement


@triton.jit
def widened(x):
    """A block of raw rows in float64."""
    if x.dtype.primitive_bitwidth == 16:
        x = x.to(tl.float32)
    return x.to(tl.float64)


@triton.jit
def projection_factor(dot, square, NARROW: tl.constexpr):
    """a.b / b.b. Against rows of at most 24 bits the factor is cut to 24, so that its product with them is exact; the
    error this leaves is parallel to b and taken out afterwards."""
    factor = dot / square
    if NARROW:
        factor = (factor.to(tl.int64, bitcast=True) & -0x20000000).to(tl.float64, bitcast=True)
    return factor


@triton.jit
def half_square_from_residual(square, along, square_a, square_b):
    """h from the residual of the shorter row a after projection on the longer b: |r|^2 and r.b. Under 2^-40 of |r|^2
    nothing of it is perpendicular: it is the rounding of sums that cancel."""
    across = square - along * along / square_b
    sine = tl.where(across < 9.094947017729282e-13 * square, 0.0, across / square_a)
    sine = tl.where(sine > 1.0, 1.0, sine)
    return sine / (2.0 * (1.0 + tl.sqrt(1.0 - sine)))


@triton.jit
def one_pair(x, y, dot, square_x, square_y, depth, ANGULAR: tl.constexpr, NARROW: tl.constexpr, COLUMNS: tl.constexpr):
    """(|x - y|^2, h) of two rows of `depth` elements at the pointers x and y."""
    swap = square_x > square_y  # the longer row is the base of the projection
    square_a, square_b = tl.minimum(square_x, square_y), tl.maximum(square_x, square_y)
    lanes = tl.arange(0, COLUMNS)
    apart = tl.zeros((COLUMNS,), tl.float64)
    square = tl.zeros((COLUMNS,), tl.float64)
    along = tl.zeros((COLUMNS,), tl.float64)
    factor = projection_factor(dot, square_b, NARROW)
    for k in range(0, depth, COLUMNS):
        u = widened(tl.load(x + k + lanes, mask=k + lanes < depth, other=0.0))
        v = widened(tl.load(y + k + lanes, mask=k + lanes < depth, other=0.0))
        apart += (u - v) * (u - v)
        if ANGULAR:
            base = tl.where(swap, u, v)
            residual = tl.fma(-factor + tl.zeros_like(base), base, tl.where(swap, v, u))
            square += residual * residual
            along += residual * base
    return tl.sum(apart), half_square_from_residual(tl.sum(square), tl.sum(along), square_a, square_b)


@triton.jit
def all_pairs(
    x, y, dots, square_x, square_y, rows, columns, n, m, depth,
    ANGULAR: tl.constexpr, NARROW: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """(|x_i - y_j|^2, h) (PART, PART) of the rows numbered `rows` and `columns`."""
    swap = square_x[:, None] > square_y[None, :]
    square_a = tl.minimum(square_x[:, None], square_y[None, :])
    square_b = tl.maximum(square_x[:, None], square_y[None, :])
    factor = projection_factor(dots, square_b, NARROW)
    apart = tl.zeros((PART, PART), tl.float64)
    square = tl.zeros((PART, PART), tl.float64)
    along = tl.zeros((PART, PART), tl.float64)
    x_rows, y_rows = x + rows.to(tl.int64) * depth, y + columns.to(tl.int64) * depth
    for k in range(depth):
        u = widened(tl.load(x_rows + k, mask=rows < n, other=0.0))[:, None]
        v = widened(tl.load(y_rows + k, mask=columns < m, other=0.0))[None, :]
        apart += (u - v) * (u - v)
        if ANGULAR:
            base = tl.where(swap, u, v)
            residual = tl.fma(-factor, base, tl.where(swap, v, u))
            square += residual * residual
            along += residual * base
    return apart, half_square_from_residual(square, along, square_a, square_b)


@triton.jit
def store_pairs(out, value, mask, row, column, m, SYMMETRIC: tl.constexpr, PART: tl.constexpr):
    """Write the entries under `mask`, and their mirror images."""
    local = tl.arange(0, PART)
    start, within = offsets(row, column, m, PART)
    tl.store(out + start + within, value, mask=mask)
    if SYMMETRIC:
        start = column.to(tl.int64) * m + row
        tl.store(out + start + (local[None, :] * m + local[:, None]), value, mask=mask)


@triton.jit(do_not_specialize=["n", "m", "depth"])
def refine_kernel(
    gram, x, y, square_x, square_y, scale, raw, spherical, hyperbolic, flags, n, m, depth, near,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program a part (PART, PART) of an epilogue's tile; x (n, depth), y (m, depth) contiguous rows."""
    ANGULAR: tl.constexpr = SPHERICAL or HYPERBOLIC
    NARROW: tl.constexpr = x.dtype.element_ty != tl.float64
    kind: tl.constexpr = raw.dtype.element_ty
    parts: tl.constexpr = TILE // PART
    tile, part = tl.program_id(0) // (parts * parts), tl.program_id(0) % (parts * parts)
    if tl.load(flags + tile) != 0:
        row, column, _ = tile_of_program(tile, n, m, SYMMETRIC, TILE)
        row, column = row * TILE + part // parts * PART, column * TILE + part % parts * PART
        rows, columns = row + tl.arange(0, PART), column + tl.arange(0, PART)
        dots = load_gram(gram, row, column, n, m, PART)
        norms_x, norms_y = load_squares(square_x, row, n, PART), load_squares(square_y, column, m, PART)
        inside = candidates(row, column, n, m, SYMMETRIC, PART)
        square, half = tl.zeros_like(dots), tl.zeros_like(dots)
        unsafe, parallel = tl.zeros_like(inside), tl.zeros_like(inside)
        if RAW:
            square, unsafe = raw_square(dots, norms_x, norms_y, near)
        if ANGULAR:
            half, parallel = half_square(dots, norms_x, norms_y, near)
        unsafe, parallel = unsafe & inside, parallel & inside
        lost = unsafe | parallel
        count = tl.sum(lost.to(tl.int32))
        if count > FEW:
            square, half = all_pairs(
                x, y, dots, norms_x, norms_y, rows, columns, n, m, depth, ANGULAR, NARROW, PART
            )  # fmt: skip
        else:
            index = tl.arange(0, PART)[:, None] * PART + tl.arange(0, PART)[None, :]
            left = tl.where(lost, index, PART * PART)
            for _ in range(count):
                first = tl.min(left)
                i, j = row + first // PART, column + first % PART
                one, two = one_pair(
                    x + i.to(tl.int64) * depth, y + j.to(tl.int64) * depth,
                    tl.load(gram + i.to(tl.int64) * m + j).to(tl.float64), tl.load(square_x + i), tl.load(square_y + j),
                    depth, ANGULAR, NARROW, COLUMNS,
                )  # fmt: skip
                square, half = tl.where(index == first, one, square), tl.where(index == first, two, half)
                left = tl.where(index == first, PART * PART, left)
        if RAW:
            value = raw_distance(tl.where(unsafe, square, 0.0), kind)
            store_pairs(raw, value, unsafe, row, column, m, SYMMETRIC, PART)
        if ANGULAR:
            half, opposite = tl.where(parallel, half, 0.0).to(kind), dots < 0.0
            if SPHERICAL:
                value = spherical_distance(half, opposite)
                store_pairs(spherical, value, parallel, row, column, m, SYMMETRIC, PART)
            if HYPERBOLIC:
                value = hyperbolic_distance(half, opposite, tl.load(scale).to(kind))
                store_pairs(hyperbolic, value, parallel, row, column, m, SYMMETRIC, PART)


def run(gram, x, y, square_x, square_y, scale, outputs, near, symmetric):
    """Fill the matrices of `outputs`, {geometry name: (n, m)}, all of one dtype.

    gram (n, m); x (n, depth) and y (m, depth) contiguous; square_x (n,), square_y (m,) and scale (1,) float64.
    """
    (n, m), depth = gram.shape, x.shape[1]
    count = programs(n, m, symmetric)
    flags = gram.new_empty(count, dtype=torch.int32)
    spare = next(iter(outputs.values()))
    matrices = [outputs.get(name, spare) for name in ("raw", "spherical", "hyperbolic")]
    wanted = {name.upper(): name in outputs for name in ("raw", "spherical", "hyperbolic")}
    shared = dict(SYMMETRIC=symmetric, TILE=TILE, **wanted)
    epilogue_kernel[(count,)](
        gram, square_x, square_y, scale, *matrices, flags, n, m, near, num_warps=WARPS["epilogue"], **shared
    )
    refine_kernel[(count * (TILE // PART) ** 2,)](
        gram, x, y, square_x, square_y, scale, *matrices, flags, n, m, depth, near, PART=PART, FEW=FEW,
        COLUMNS=COLUMNS, num_warps=WARPS["refine"], **shared,
    )  # fmt: skip
