"""Distances of three geometries from one Gram matrix: the twins of kernels/cuda/distances.cu.

epilogue    one pass over the Gram matrix gives every matrix that is wanted; of a symmetric one a tile above the
            diagonal is computed once and written twice. Near pairs, whose distance the Gram matrix has lost to
            cancellation, are listed: one by one where a tile has few, the whole tile where it has many.
pairs       the pairs listed, again from the raw rows in float64, a program a pair.
tiles       the near pairs of the tiles listed, likewise, a program a tile.
The order of the lists, which atomics make, changes no bit.

The formulas are those of csrc/geometry/{raw,spherical,hyperbolic,rows}.h. Everything before the last step is float64.
"""

import torch

import triton
import triton.language as tl
from geowidth.kernels import elementary

GEOMETRIES = ("raw", "spherical", "hyperbolic")

# Sizes chosen by counting bytes and registers on data sheets and in RESOURCES.csv; not yet measured on a card.
TILE = 32  # rows and columns that a program takes at a time: whole 128-byte lines of float32, also when transposed
FEW = 32  # near pairs of a tile up to which they are listed one by one
COLUMNS = 1024  # elements of two rows that a step of `pairs` takes
WARPS = {"epilogue": 8, "pairs": 4, "tiles": 8}
RESIDENT = {"pairs": 4, "tiles": 1}  # programs a processor, as the registers allow


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
    whole = square_x + square_y
    square = whole - (gram + gram)
    return square, square < near * whole


@triton.jit
def half_square(gram, square_x, square_y, near):
    """(h = sin^2(t/2), t <= pi/2 the angle of the two lines, whether the Gram form has lost digits)."""
    inverse = (1.0 / tl.sqrt(square_x)) * (1.0 / tl.sqrt(square_y))
    half = 0.5 - 0.5 * tl.abs(gram * inverse)
    return half, half < 0.5 * near


@triton.jit
def raw_distance(square, KIND: tl.constexpr):
    """The root, in float32 by way of exact powers of two where the square is out of its range."""
    if KIND == tl.float64:  # noqa: SIM300
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
    """Write a tile and, in a symmetric matrix, its mirror image; `null` (TILE, 1): what stands on the diagonal."""
    local = tl.arange(0, TILE)
    columns = column + local < m
    if SYMMETRIC:
        rows = row + local < m  # what is known of m, such as that 16 divides it, is not known of n
        if row == column:
            # A library's Gram matrix need not be symmetric in its last bits: both twins are the upper one.
            value = tl.where(local[:, None] < local[None, :], value, tl.trans(value))
            value = tl.where(local[:, None] == local[None, :], null, value)
        else:
            start, within = offsets(column, row, m, TILE)
            tl.store(out + start + within, tl.trans(value), mask=columns[:, None] & rows[None, :])
    else:
        rows = row + local < n
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


@triton.jit
def list_pairs(place, lost, count, row, column, m, TILE: tl.constexpr):
    """Write the offsets of the `count` pairs under the mask `lost` of a tile to `place` and after."""
    local = tl.arange(0, TILE)
    index = local[:, None] * TILE + local[None, :]
    left = tl.where(lost, index, TILE * TILE)
    for k in range(count):
        first = tl.min(left)
        tl.store(place + k, (row + first // TILE).to(tl.int64) * m + (column + first % TILE))
        left = tl.where(index == first, TILE * TILE, left)


@triton.jit(do_not_specialize=["n"])
def epilogue_kernel(
    gram, square_x, square_y, scale, raw, spherical, hyperbolic, counts, tiles, pairs, n, m, near,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr, TILE: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """gram (n, m) of any float type, square_x (n,), square_y (m,) float64, scale (1,) float64; outputs (n, m) of one
    float type; counts (2,) int32: 0 at first, then how many of tiles (programs,) int32, numbers of programs, and of
    pairs (programs * FEW,) int64, offsets into the matrices, are listed."""
    row, column, wanted = tile_of_program(tl.program_id(0), n, m, SYMMETRIC, TILE)
    row, column = row * TILE, column * TILE
    if wanted:
        kind: tl.constexpr = raw.dtype.element_ty
        products = load_gram(gram, row, column, n, m, TILE)
        norms_x = load_squares(square_x, row, n, TILE)[:, None]
        norms_y = load_squares(square_y, column, m, TILE)[None, :]
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
        lost = lost & candidates(row, column, n, m, SYMMETRIC, TILE)
        count = tl.sum(lost.to(tl.int32))
        if count > FEW:
            tl.store(tiles + tl.atomic_add(counts, 1), tl.program_id(0))
        elif count > 0:
            list_pairs(pairs + tl.atomic_add(counts + 1, count), lost, count, row, column, m, TILE)


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
    ANGULAR: tl.constexpr, NARROW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(|x_i - y_j|^2, h) (TILE, TILE) of the rows numbered `rows` and `columns`."""
    swap = square_x > square_y
    square_a, square_b = tl.minimum(square_x, square_y), tl.maximum(square_x, square_y)
    factor = projection_factor(dots, square_b, NARROW)
    apart = tl.zeros((TILE, TILE), tl.float64)
    square = tl.zeros((TILE, TILE), tl.float64)
    along = tl.zeros((TILE, TILE), tl.float64)
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
def store_both(out, value, mask, rows, columns, m, SYMMETRIC: tl.constexpr):
    """Write entries (rows, columns) under `mask`, and their mirror images."""
    tl.store(out + (rows.to(tl.int64) * m + columns), value, mask=mask)
    if SYMMETRIC:
        tl.store(out + (columns.to(tl.int64) * m + rows), value, mask=mask)


@triton.jit
def store_refined(
    raw, spherical, hyperbolic, square, half, unsafe, parallel, opposite, scale, rows, columns, m,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Write raw distances under `unsafe` and directional ones under `parallel`: what is near in one geometry need not
    be in the other, and a matrix must not depend on which others are asked for."""
    kind: tl.constexpr = raw.dtype.element_ty
    if RAW:
        store_both(raw, raw_distance(tl.where(unsafe, square, 0.0), kind), unsafe, rows, columns, m, SYMMETRIC)
    half = tl.where(parallel, half, 0.0).to(kind)
    if SPHERICAL:
        store_both(spherical, spherical_distance(half, opposite), parallel, rows, columns, m, SYMMETRIC)
    if HYPERBOLIC:
        value = hyperbolic_distance(half, opposite, tl.load(scale).to(kind))
        store_both(hyperbolic, value, parallel, rows, columns, m, SYMMETRIC)


@triton.jit
def unsafe_and_parallel(dots, square_x, square_y, near, RAW: tl.constexpr, ANGULAR: tl.constexpr):
    """Masks of the pairs near in the raw geometry and in the directional ones."""
    unsafe = dots != dots
    parallel = unsafe
    if RAW:
        _, unsafe = raw_square(dots, square_x, square_y, near)
    if ANGULAR:
        _, parallel = half_square(dots, square_x, square_y, near)
    return unsafe, parallel


@triton.jit(do_not_specialize=["m"])
def pairs_kernel(
    gram, x, y, square_x, square_y, scale, raw, spherical, hyperbolic, counts, pairs, m, depth, near,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """x (n, depth), y (m, depth) contiguous rows; the rest as `epilogue_kernel` has and leaves it."""
    ANGULAR: tl.constexpr = SPHERICAL or HYPERBOLIC
    NARROW: tl.constexpr = x.dtype.element_ty != tl.float64
    for slot in range(tl.program_id(0), tl.load(counts + 1), tl.num_programs(0)):
        offset = tl.load(pairs + slot)
        i, j = offset // m, offset % m
        dot, norm_x, norm_y = tl.load(gram + offset).to(tl.float64), tl.load(square_x + i), tl.load(square_y + j)
        unsafe, parallel = unsafe_and_parallel(dot, norm_x, norm_y, near, RAW, ANGULAR)
        square, half = one_pair(
            x + i * depth, y + j * depth, dot, norm_x, norm_y, depth, ANGULAR, NARROW, COLUMNS
        )  # fmt: skip
        store_refined(
            raw, spherical, hyperbolic, square, half, unsafe, parallel, dot < 0.0, scale, i, j, m,
            RAW, SPHERICAL, HYPERBOLIC, SYMMETRIC,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "m"])
def tiles_kernel(
    gram, x, y, square_x, square_y, scale, raw, spherical, hyperbolic, counts, tiles, n, m, depth, near,
    RAW: tl.constexpr, SPHERICAL: tl.constexpr, HYPERBOLIC: tl.constexpr, SYMMETRIC: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """As `pairs_kernel`, for the tiles listed."""
    ANGULAR: tl.constexpr = SPHERICAL or HYPERBOLIC
    NARROW: tl.constexpr = x.dtype.element_ty != tl.float64
    local = tl.arange(0, TILE)
    for slot in range(tl.program_id(0), tl.load(counts), tl.num_programs(0)):
        row, column, _ = tile_of_program(tl.load(tiles + slot), n, m, SYMMETRIC, TILE)
        row, column = row * TILE, column * TILE
        dots = load_gram(gram, row, column, n, m, TILE)
        norms_x = load_squares(square_x, row, n, TILE)[:, None]
        norms_y = load_squares(square_y, column, m, TILE)[None, :]
        unsafe, parallel = unsafe_and_parallel(dots, norms_x, norms_y, near, RAW, ANGULAR)
        square, half = all_pairs(
            x, y, dots, norms_x, norms_y, row + local, column + local, n, m, depth, ANGULAR, NARROW, TILE
        )  # fmt: skip
        inside = candidates(row, column, n, m, SYMMETRIC, TILE)
        store_refined(
            raw, spherical, hyperbolic, square, half, unsafe & inside, parallel & inside, dots < 0.0, scale,
            (row + local)[:, None], (column + local)[None, :], m, RAW, SPHERICAL, HYPERBOLIC, SYMMETRIC,
        )  # fmt: skip


def run(gram, x, y, square_x, square_y, scale, outputs, *, near, symmetric, processors):
    """Fill the matrices of `outputs`, {geometry name: (n, m)}, all of one dtype.

    gram (n, m); x (n, depth) and y (m, depth) contiguous; square_x (n,), square_y (m,) and scale (1,) float64;
    near: share of the squared norms' sum under which a pair is refined; processors: of the GPU.
    """
    (n, m), depth = gram.shape, x.shape[1]
    count = programs(n, m, symmetric)
    counts = torch.zeros(2, dtype=torch.int32, device=gram.device)
    tiles = torch.empty(count, dtype=torch.int32, device=gram.device)
    pairs = torch.empty(count * FEW, dtype=torch.int64, device=gram.device)
    spare = next(iter(outputs.values()))
    matrices = [outputs.get(name, spare) for name in GEOMETRIES]
    wanted = dict(SYMMETRIC=symmetric, **{name.upper(): name in outputs for name in GEOMETRIES})
    squares, rows = (square_x, square_y, scale, *matrices, counts), (gram, x, y)
    epilogue_kernel[(count,)](
        gram, *squares, tiles, pairs, n, m, near, **wanted, TILE=TILE, FEW=FEW, **_options("epilogue")
    )
    pairs_kernel[(min(count * FEW, RESIDENT["pairs"] * processors),)](
        *rows, *squares, pairs, m, depth, near, **wanted, COLUMNS=COLUMNS, **_options("pairs")
    )
    tiles_kernel[(min(count, RESIDENT["tiles"] * processors),)](
        *rows, *squares, tiles, n, m, depth, near, **wanted, TILE=TILE, **_options("tiles")
    )


def _options(kernel):
    return dict(num_warps=WARPS[kernel], enable_fp_fusion=True)
