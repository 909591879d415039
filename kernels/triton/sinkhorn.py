"""Sinkhorn's iterations for the coupling k_ij 2^(u_i + v_j) with marginals a (n,) and b (m,).

enter       from potentials f, g and the log-kernel scale (x + r s'): f by its rows' log-sums, then k, the coupling
            those make, and log-sums of its columns. In the log domain, safe from any potentials.
advance     one pass: reads k once; u from the row sums, column sums of what that gives. No maxima are needed: after
            `enter` the columns are exact, so a row sum is at least min(b) times its weight and at most 1; then the rows
            are, and the same holds of columns with min(a). Where the range of numbers ends before that, `finish` says.
finish      adds the partial sums, one of each program's rows, in their order: v, and the error of the column sums.
plan        the coupling, and what the outer iterations ask of it.
inner       sum x y in float64.

k keeps the digits that potentials lose to scale * x where eps is small: once it is formed, all passes see one kernel,
and u and v stay near 0. Nothing depends on the order in which programs run.
"""

import torch

import triton
import triton.language as tl

# Sizes chosen by counting bytes and registers on data sheets and in RESOURCES.csv; not yet measured on a card.
WARPS = {"enter": 8, "advance": 8, "finish": 4, "plan": 4, "inner": 4}
RESIDENT = 2  # programs of `enter` and `advance` a processor
ENTER = 8, 512  # rows and columns that `enter` takes at a time
LOOPED = 4, 2048  # and `advance`, of rows too long to be held
HELD = {4: 8192, 8: 4096}  # bytes of a number: numbers that `advance` holds at a time, in whole rows
FINISH = 32, 64  # columns of a program, partial sums at a time
PLAN = 4, 512
INNER = 4096
LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)
LOW = tl.constexpr(-1e38)  # stands for the logarithm of nothing, outside the matrix


@triton.jit
def load_vector(pointer, index, count, other):
    return tl.load(pointer + index, mask=index < count, other=other)


@triton.jit
def offsets(rows, columns, m):
    """64-bit offsets (rows, columns) of a row-major matrix with m columns."""
    return rows.to(tl.int64)[:, None] * m + columns[None, :]


@triton.jit
def log_kernel(x, r, s, g, scale, rows, columns, end, m):
    """scale (x + r s') + g in float64, base 2, LOW outside."""
    inside = (rows < end)[:, None] & (columns < m)[None, :]
    value = tl.load(x + offsets(rows, columns, m), mask=inside, other=0.0).to(tl.float64)
    one = load_vector(r, rows, end, 0.0).to(tl.float64)[:, None]
    two = load_vector(s, columns, m, 0.0).to(tl.float64)[None, :]
    shift = load_vector(g, columns, m, 0.0).to(tl.float64)[None, :] * LOG2_E
    return tl.where(inside, scale * (value + one * two) + shift, LOW)


@triton.jit(do_not_specialize=["n", "slab"])
def enter_kernel(
    x, r, s, f, g, a, scale, k, tops, sums, n, m, slab, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """x, k (n, m), r, f, a (n,), s, g (m,) of one float type, scale (1,) float64, base 2; tops, sums (programs, m): a
    program's column sums are sum * 2^top. A program takes `slab` rows."""
    begin = tl.program_id(0) * slab
    end = tl.minimum(begin + slab, n)
    kind: tl.constexpr = k.dtype.element_ty
    factor = tl.load(scale)
    partial = tl.program_id(0).to(tl.int64) * m
    for row in range(begin, end, ROWS):
        rows = row + tl.arange(0, ROWS)
        highest = tl.full((ROWS,), LOW, tl.float64)
        total = tl.zeros((ROWS,), kind)
        for column in range(0, m, COLUMNS):
            z = log_kernel(x, r, s, g, factor, rows, column + tl.arange(0, COLUMNS), end, m)
            top = tl.maximum(highest, tl.max(z, 1))
            total = total * tl.exp2((highest - top).to(kind)) + tl.sum(tl.exp2((z - top[:, None]).to(kind)), 1)
            highest = top
        potential = tl.log2(load_vector(a, rows, end, 1.0).to(tl.float64)) - highest - tl.log2(total.to(tl.float64))
        tl.store(f + rows, (potential * LOG_2).to(kind), mask=rows < end)
        for column in range(0, m, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            z = log_kernel(x, r, s, g, factor, rows, columns, end, m) + potential[:, None]
            inside = (rows < end)[:, None] & (columns < m)[None, :]
            z = tl.where(inside, z, LOW).to(kind)
            tl.store(k + offsets(rows, columns, m), tl.exp2(z), mask=inside)
            known = columns < tl.where(row > begin, m, 0)  # nothing is there yet at the first rows
            before = tl.load(tops + partial + columns, mask=known, other=LOW)
            held = tl.load(sums + partial + columns, mask=known, other=0.0)
            top = tl.maximum(before, tl.max(z, 0))
            held = held * tl.exp2(before - top) + tl.sum(tl.exp2(z - top[None, :]), 0)
            tl.store(tops + partial + columns, top, mask=columns < m)
            tl.store(sums + partial + columns, held, mask=columns < m)


@triton.jit
def masses(k, v, rows, columns, end, m):
    """k 2^v (rows, columns), 0 outside."""
    inside = (rows < end)[:, None] & (columns < m)[None, :]
    value = tl.load(k + offsets(rows, columns, m), mask=inside, other=0.0)
    return value * tl.exp2(load_vector(v, columns, m, 0.0))[None, :]


@triton.jit
def row_factors(u, a, mass, rows, end):
    """2^u (rows, 1) that brings rows of mass `mass` to their weights; stores u."""
    factor = load_vector(a, rows, end, 1.0) / tl.where(rows < end, mass, 1.0)
    tl.store(u + rows, tl.log2(factor), mask=rows < end)
    return factor[:, None]


@triton.jit(do_not_specialize=["n", "slab"])
def advance_kernel(k, u, v, a, sums, n, m, slab, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HELD: tl.constexpr):
    """k (n, m), u, a (n,), v (m,); sums (programs, m): column sums of a program's rows. HELD: COLUMNS reaches m, and
    rows stay in registers between their sums and the columns'."""
    begin = tl.program_id(0) * slab
    end = tl.minimum(begin + slab, n)
    place = sums + tl.program_id(0).to(tl.int64) * m
    local = tl.arange(0, COLUMNS)
    if HELD:
        total = tl.zeros((COLUMNS,), k.dtype.element_ty)
        for row in range(begin, end, ROWS):
            rows = row + tl.arange(0, ROWS)
            mass = masses(k, v, rows, local, end, m)
            total += tl.sum(mass * row_factors(u, a, tl.sum(mass, 1), rows, end), 0)
        tl.store(place + local, total, mask=local < m)
    else:
        for row in range(begin, end, ROWS):
            rows = row + tl.arange(0, ROWS)
            mass = tl.zeros((ROWS,), k.dtype.element_ty)
            for column in range(0, m, COLUMNS):
                mass += tl.sum(masses(k, v, rows, column + local, end, m), 1)
            factor = row_factors(u, a, mass, rows, end)
            for column in range(0, m, COLUMNS):
                columns = column + local
                total = tl.load(place + columns, mask=columns < tl.where(row > begin, m, 0), other=0.0)
                total += tl.sum(masses(k, v, rows, columns, end, m) * factor, 0)
                tl.store(place + columns, total, mask=columns < m)


@triton.jit(do_not_specialize=["programs", "turn"])
def finish_kernel(
    tops, sums, b, v, v_next, errors, m, programs, turn, stride, momentum,
    ENTERED: tl.constexpr, COLUMNS: tl.constexpr, PARTIALS: tl.constexpr,
):  # fmt: skip
    """v_next (m,) = v + stride log2(b / column sums) + momentum (v - v_next), where v_next holds the v before; a stride
    of 1 and no momentum are Sinkhorn's. errors (turns, grid) float64: sum |column sum - b| of a program's columns in
    line `turn`, infinite where a sum is not a number above 0 (v_next is v there)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < m
    top = tl.full((COLUMNS,), LOW, tl.float64)
    total = tl.zeros((COLUMNS,), tl.float64)
    for first in range(0, programs, PARTIALS):
        lines = first + tl.arange(0, PARTIALS)
        place, known = offsets(lines, columns, m), (lines < programs)[:, None] & inside[None, :]
        value = tl.load(sums + place, mask=known, other=0.0).to(tl.float64)
        if ENTERED:
            tops_here = tl.load(tops + place, mask=known, other=LOW).to(tl.float64)
            new = tl.maximum(top, tl.max(tops_here, 0))
            total = total * tl.exp2(top - new) + tl.sum(value * tl.exp2(tops_here - new[None, :]), 0)
            top = new
        else:
            total += tl.sum(value, 0)
    wanted = load_vector(b, columns, m, 1.0).to(tl.float64)
    good = (total > 0.0) & (total < float("inf"))
    logarithm = tl.log2(tl.where(good & inside, total, 1.0))
    if ENTERED:
        logarithm += tl.where(inside, top, 0.0)
        total = tl.exp2(logarithm)
    old = load_vector(v, columns, m, 0.0).to(tl.float64)
    new = old + stride * (tl.log2(wanted) - logarithm)
    if not ENTERED:
        new += momentum * (old - load_vector(v_next, columns, m, 0.0).to(tl.float64))
    new = tl.where(good, new, old)
    tl.store(v_next + columns, new.to(v.dtype.element_ty), mask=inside)
    miss = tl.where(good, tl.abs(total - wanted), float("inf"))
    tl.store(errors + turn * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.where(inside, miss, 0.0)))


@triton.jit(do_not_specialize=["n"])
def plan_kernel(k, u, v, x, r, s, plan, parts, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """plan (n, m) = k 2^(u + v); parts (grid, 3) float64: sums of |plan - plan before|, x plan, r_i plan_ij s_j."""
    blocks = tl.cdiv(m, COLUMNS)
    rows = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    place = offsets(rows, columns, m)
    mass = masses(k, v, rows, columns, n, m) * tl.exp2(load_vector(u, rows, n, 0.0))[:, None]
    old = tl.load(plan + place, mask=inside, other=0.0)
    value = tl.load(x + place, mask=inside, other=0.0)
    tl.store(plan + place, mass, mask=inside)
    wide = mass.to(tl.float64)
    one = load_vector(r, rows, n, 0.0).to(tl.float64)[:, None]
    two = load_vector(s, columns, m, 0.0).to(tl.float64)[None, :]
    line = parts + tl.program_id(0).to(tl.int64) * 3
    tl.store(line, tl.sum(tl.abs(mass - old).to(tl.float64)))
    tl.store(line + 1, tl.sum(value.to(tl.float64) * wide))
    tl.store(line + 2, tl.sum(one * wide * two))


@triton.jit
def inner_kernel(x, y, parts, count, BLOCK: tl.constexpr):
    """parts (grid,) float64: sums of x y over BLOCK numbers of `count` each."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    one = load_vector(x, index, count, 0.0).to(tl.float64)
    two = load_vector(y, index, count, 0.0).to(tl.float64)
    tl.store(parts + tl.program_id(0), tl.sum(one * two))


# ---------------------------------------------------------------- launches


def _options(kernel):
    return dict(num_warps=WARPS[kernel], enable_fp_fusion=True)


def tile(m, size):
    """(rows, columns, held) of `advance` for m columns of numbers of `size` bytes."""
    columns = max(16, triton.next_power_of_2(m))
    if columns > HELD[size]:
        return *LOOPED, False
    return min(HELD[size] // columns, 8), columns, True


class Buffers:
    """What the kernels need beside their inputs, for (n, m) couplings. `turns`: passes between two readings."""

    def __init__(self, n, m, dtype, device, processors, turns):
        def empty(*shape, dtype=dtype):
            return torch.empty(shape, dtype=dtype, device=device)

        self.n, self.m = n, m
        self.rows, self.columns, self.held = tile(m, dtype.itemsize)
        share = triton.cdiv(n, RESIDENT * processors)
        self.slab = triton.cdiv(share, self.rows) * self.rows
        self.programs = triton.cdiv(n, self.slab)
        self.k, self.u = empty(n, m), empty(n)
        self.v, self.v_next = empty(m), empty(m).zero_()
        self.tops, self.sums = empty(self.programs, m), empty(self.programs, m)
        self.errors = empty(turns, triton.cdiv(m, FINISH[0]), dtype=torch.float64)
        self.plan_parts = empty(triton.cdiv(n, PLAN[0]) * triton.cdiv(m, PLAN[1]), 3, dtype=torch.float64)
        self.inner_parts = empty(triton.cdiv(n * m, INNER), dtype=torch.float64)

    def _finish(self, b, turn, entered, stride=1.0, momentum=0.0):
        finish_kernel[(self.errors.shape[1],)](
            self.tops, self.sums, b, self.v, self.v_next, self.errors, self.m, self.programs, turn,
            stride, momentum,
            ENTERED=entered, COLUMNS=FINISH[0], PARTIALS=FINISH[1], **_options("finish"),
        )  # fmt: skip

    def enter(self, x, r, s, f, g, a, b, scale, turn):
        """From potentials g: f, k; u = v = 0 make the coupling, v_next the next one. The first pass."""
        enter_kernel[(self.programs,)](
            x, r, s, f, g, a, scale, self.k, self.tops, self.sums, self.n, self.m, self.slab,
            ROWS=ENTER[0], COLUMNS=ENTER[1], **_options("enter"),
        )  # fmt: skip
        self.u.zero_()
        self.v.zero_()
        self._finish(b, turn, True)

    def advance(self, a, b, turn, stride, momentum):
        """A pass: v takes v_next's place, u and the next v_next follow."""
        self.v, self.v_next = self.v_next, self.v
        advance_kernel[(self.programs,)](
            self.k, self.u, self.v, a, self.sums, self.n, self.m, self.slab,
            ROWS=self.rows, COLUMNS=self.columns, HELD=self.held, **_options("advance"),
        )  # fmt: skip
        self._finish(b, turn, False, stride, momentum)

    def read(self, turns):
        """[largest |u| or |v|, errors of the passes of turns 0, 1, ...]: waits for the device."""
        far = torch.maximum(self.u.abs().max(), self.v.abs().max()).double()
        return torch.cat([far[None], self.errors[:turns].sum(1)]).tolist()

    def plan(self, x, r, s, out):
        """out = the coupling; a float64 tensor (3,) of its sums: see plan_kernel."""
        plan_kernel[(len(self.plan_parts),)](
            self.k, self.u, self.v, x, r, s, out, self.plan_parts, self.n, self.m,
            ROWS=PLAN[0], COLUMNS=PLAN[1], **_options("plan"),
        )  # fmt: skip
        return self.plan_parts.sum(0)

    def inner(self, x, y):
        """sum x y of two (n, m) matrices, a float64 tensor ()."""
        inner_kernel[(len(self.inner_parts),)](x, y, self.inner_parts, x.numel(), BLOCK=INNER, **_options("inner"))
        return self.inner_parts.sum()
