"""The elementwise part of a feed-forward layer over matrices with unit column stride and any row stride."""

import triton
import triton.language as tl
from geowidth.kernels import pointwise

COLUMNS = 1024  # elements of one row that one program takes
WARPS = 4


@triton.jit
def columns_of_program(width, COLUMNS: tl.constexpr, PADDED: tl.constexpr):
    """(row, column offsets, mask of what may be touched). PADDED: rows may be touched up to ceil8(width)."""
    touched = width
    if PADDED:
        touched = tl.cdiv(width, 8) * 8
    blocks = tl.cdiv(touched, COLUMNS)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    offsets = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    return row, offsets, offsets < touched


@triton.jit
def row_pointer(pointer, row, stride, PADDED: tl.constexpr):
    """Address of a row; PADDED: `stride` counts groups of 8, which tells the compiler that rows start aligned."""
    if PADDED:
        return pointer + row * (stride * 8)
    else:
        return pointer + row * stride


@triton.jit(do_not_specialize=["width", "gate_stride", "up_stride", "hidden_stride"])
def forward_kernel(
    gate, up, hidden, width, gate_stride, up_stride, hidden_stride,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, offsets, mask = columns_of_program(width, COLUMNS, PADDED)
    u = tl.load(row_pointer(up, row, up_stride, PADDED) + offsets, mask=mask, other=0.0).to(WIDE)
    if GATED:
        g = tl.load(row_pointer(gate, row, gate_stride, PADDED) + offsets, mask=mask, other=0.0).to(WIDE)
        h = pointwise.activate(g, ACTIVATION) * u
    else:
        h = pointwise.activate(u, ACTIVATION)
    tl.store(row_pointer(hidden, row, hidden_stride, PADDED) + offsets, h.to(hidden.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        "width", "gate_stride", "up_stride", "gradient_stride", "grad_gate_stride", "grad_up_stride", "hidden_stride"
    ]
)  # fmt: skip
def backward_kernel(
    gate, up, gradient, grad_gate, grad_up, hidden,
    width, gate_stride, up_stride, gradient_stride, grad_gate_stride, grad_up_stride, hidden_stride,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, HIDDEN: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row, offsets, mask = columns_of_program(width, COLUMNS, PADDED)
    u = tl.load(row_pointer(up, row, up_stride, PADDED) + offsets, mask=mask, other=0.0).to(WIDE)
    g = u
    if GATED:
        g = tl.load(row_pointer(gate, row, gate_stride, PADDED) + offsets, mask=mask, other=0.0).to(WIDE)
    dh = tl.load(row_pointer(gradient, row, gradient_stride, PADDED) + offsets, mask=mask, other=0.0).to(WIDE)
    dg, du, h = pointwise.backward(g, u, dh, ACTIVATION, GATED)
    if PADDED:  # padding becomes zero, whatever the inputs have there: products over hidden units may then read it
        dg = tl.where(offsets < width, dg, 0.0)
        du = tl.where(offsets < width, du, 0.0)
    kind = grad_up.dtype.element_ty
    if GATED:
        tl.store(row_pointer(grad_gate, row, grad_gate_stride, PADDED) + offsets, dg.to(kind), mask=mask)
    tl.store(row_pointer(grad_up, row, grad_up_stride, PADDED) + offsets, du.to(kind), mask=mask)
    if HIDDEN:
        tl.store(row_pointer(hidden, row, hidden_stride, PADDED) + offsets, h.to(kind), mask=mask)


def _wide(tensor):
    return tl.float64 if tensor.element_size() == 8 else tl.float32


def _strides(matrices, padded):
    strides = [0 if m is None or m.shape[0] <= 1 else m.stride(0) for m in matrices]
    return [s // 8 for s in strides] if padded else strides


def _launch(kernel, matrices, like, padded, **constants):
    rows, width = like.shape
    strides = _strides(matrices, padded)
    grid = (rows * triton.cdiv(width, COLUMNS),)
    kernel[grid](
        *(like if m is None else m for m in matrices), width, *strides,
        GATED=matrices[0] is not None, PADDED=padded, WIDE=_wide(like), COLUMNS=COLUMNS, num_warps=WARPS,
        enable_fp_fusion=True, **constants,
    )  # fmt: skip


def forward(code, gate, up, hidden, padded=False):
    """hidden (rows, columns) = act(gate) * up, or act(up) when gate is None.

    padded: every matrix is a hidden buffer of ours (aligned rows, stride a multiple of 8, padding that may be read and
    written), so that odd widths move 16 bytes at a time.
    """
    _launch(forward_kernel, (gate, up, hidden), up, padded, ACTIVATION=code)


def backward(code, gate, up, grad_hidden, grad_gate, grad_up, hidden, padded=False):
    """Fills grad_gate, grad_up and, unless None, hidden, which may be grad_hidden's own memory."""
    matrices = (gate, up, grad_hidden, grad_gate, grad_up, hidden)
    _launch(backward_kernel, matrices, up, padded, ACTIVATION=code, HIDDEN=hidden is not None)
