"""Pairwise distances in the raw, spherical and hyperbolic geometry, all from one Gram matrix.

The Gram matrix is formed in float64 (products of float32 numbers are exact there), so neither a common offset nor one
massive dimension costs digits, and no centre ties a pair's result to the rest of the cloud. Pairs that are close
compared with their norms are computed again from the raw rows. See geowidth/geometry.py for the formulas and their
sources, geowidth/ops/distances/cuda.py for where a GPU does otherwise.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
import torch

from geowidth import inputs
from geowidth.errors import UserError, choose, choose_several
from geowidth.geometry import (
    BUILT_IN,
    GEOMETRIES,
    HYPERBOLIC_RADIUS,
    check_directions,
    check_radius,
    unit_scale,
)
from geowidth.inputs import ArrayLike
from geowidth.ops import cuda_support, triton_support
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.distances import cuda as _distances_cuda
from geowidth.ops.distances import native as _distances_native
from geowidth.ops.distances import torch as _distances_torch
from geowidth.ops.distances import triton as _distances_triton
from geowidth.ops.distances.reference import pairwise_distances_reference
from geowidth.ops.threads import thread_count

Matrix = torch.Tensor | np.ndarray

BLOCK = 2048  # rows and columns computed at a time when the result goes to `out`


@overload
def pairwise_distances(
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    geometry: Literal["raw", "spherical", "hyperbolic"] = "raw",
    radius: float = HYPERBOLIC_RADIUS,
    backend: str | None = None,
    threads: int | None = None,
    out: None = None,
) -> torch.Tensor: ...
@overload
def pairwise_distances(
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    geometry: Literal["all"] | list[str] | tuple[str, ...],
    radius: float = HYPERBOLIC_RADIUS,
    backend: str | None = None,
    threads: int | None = None,
    out: None = None,
) -> dict[str, torch.Tensor]: ...
@overload
def pairwise_distances(
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    geometry: str | Sequence[str] = "raw",
    radius: float = HYPERBOLIC_RADIUS,
    backend: str | None = None,
    threads: int | None = None,
    out: Matrix | dict[str, Matrix] | None = None,
) -> Any: ...
def pairwise_distances(
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    geometry: str | Sequence[str] = "raw",
    radius: float = HYPERBOLIC_RADIUS,
    backend: str | None = None,
    threads: int | None = None,
    out: Matrix | dict[str, Matrix] | None = None,
) -> torch.Tensor | Matrix | dict[str, torch.Tensor] | dict[str, Matrix]:
    """Distances of every row of `x` to every row of `y` (to every row of `x` itself if None).

    x, y       (n, d) and (m, d) tensors on one device; any strides; float16, bfloat16 and float32 give a float32
               result, float64 a float64 one; integers and bool are widened to float64 before any arithmetic
    geometry   "raw", "spherical" or "hyperbolic" -> a tensor (n, m); a sequence of them, or "all" -> {name: tensor},
               for little more than the price of one
    radius     of the hyperbolic geometry, 0 < radius < 1
    backend    "native" (compiled, CPU), "cuda" (compiled, GPU), "triton" (GPU) or "torch"; None: the best one, or
               GEOWIDTH_BACKEND
    threads    of the native backend (default torch.get_num_threads()); changes no bit of the result
    out        array or numpy memory map (n, m) of the result's dtype ({name: array} for several geometries), filled
               block by block, so that no more than a block of the result is in memory; returned. Not differentiable.

    Every entry is within 1e-6 relative (float32 results) or about 1e-13 (float64) of exact arithmetic on the rows as
    given, for near-duplicates, nearly parallel and nearly opposite rows too; with y None the diagonal is exactly 0 and
    the matrix exactly symmetric. On one processor the native backend's result for a pair depends on nothing but the two
    rows: not on the other rows, their order, or the threads. Differentiable once; a pair at distance 0 contributes a
    zero gradient. A row with NaN or infinity has no finite entry in its row and column, and touches no other.

    On a GPU the "cuda" backend multiplies float16 and bfloat16 clouds on tensor cores, in short slices of the columns
    with float32 sums: entries are within 1e-5 then, ordinary ones within 1e-6. So it is with float32 clouds on chips
    whose float64 is slow (all but A100, H100, H200, B200). Everything else is as above, and whether TF32 is allowed
    changes no accuracy. The host waits for the device once, to look for zero rows and to choose the way. A CUDA graph
    can capture the raw geometry of float16, bfloat16 and float32 clouds; the rest is refused there.

    Raises UserError for wrong shapes, dtypes or devices, and for a zero row in a directional geometry, by its number.
    """
    names, single = _names(geometry)
    radius = check_radius(radius)
    threads = None if threads is None else thread_count(threads)
    OPERATION.check_name(backend)
    x, y = _checked_inputs(x, y)
    if out is not None:
        return _into(out, x, y, names, single, radius, backend, threads)
    matrices = _compute(x, y, names, radius, backend, threads)
    return matrices[0] if single else dict(zip(names, matrices, strict=True))


def _names(geometry):
    if isinstance(geometry, str) and geometry != "all":
        return [choose("geometry", geometry, [*GEOMETRIES, "all"])], True
    return list(GEOMETRIES if isinstance(geometry, str) else choose_several("geometry", geometry, GEOMETRIES)), False


def _checked_inputs(x, y):
    x = inputs.tensor("x", x, ("n", "d"), dispatched=True)
    if y is None:
        return x, None
    y = inputs.tensor("y", y, ("m", "d"), dispatched=True)
    if x.shape[1] != y.shape[1]:
        raise UserError(f"x is {tuple(x.shape)} and y is {tuple(y.shape)}; both need the same number of columns")
    if x.device != y.device:
        raise UserError(f"x is on {x.device} and y on {y.device}; move one with .to(...)")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)


def _compute(x, y, names, radius, backend, threads):
    """List of matrices, one a name: through the custom op where a graph or a gradient is recorded, else directly, since
    the first call of any custom op loads torch's compiler, a second of waiting."""
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, y))
    if tracked:
        _distances_torch.check_differentiable(names)
    special = type(x) is not torch.Tensor or torch._C._are_functorch_transforms_active()
    if tracked or torch.compiler.is_compiling() or special:
        return torch.ops.geowidth.pairwise_distances(x, y, ",".join(names), radius, backend, threads)
    return _run(x, y, names, radius, backend, threads)


# ---------------------------------------------------------------- result into an array or a memory map


def _into(out, x, y, names, single, radius, backend, threads):
    arrays = {names[0]: out} if single else out
    columns = len(x if y is None else y)
    for name in names:
        _check_out(arrays, name, (len(x), columns), _distances_cuda.result_dtype(x.dtype))
    if torch.is_grad_enabled() and (x.requires_grad or (y is not None and y.requires_grad)):
        raise UserError("out= is not differentiable; leave it out, or call under torch.no_grad()")
    if any(GEOMETRIES[name].directional for name in names):  # before the blocks, so that the row number is the cloud's
        check_directions(x, "x")
        check_directions(x if y is None else y, "x" if y is None else "y")
    for i in range(0, len(x), BLOCK):
        for j in range(i if y is None else 0, columns, BLOCK):
            right = None if y is None and i == j else (x if y is None else y)[j : j + BLOCK]
            for name, block in zip(
                names, _compute(x[i : i + BLOCK], right, names, radius, backend, threads), strict=True
            ):
                _store(arrays[name], i, j, block)
                if y is None and i != j:
                    _store(arrays[name], j, i, block.T)
    return out


def _store(array, i, j, block):
    if not isinstance(array, torch.Tensor):
        block = block.cpu().numpy()
    array[i : i + block.shape[0], j : j + block.shape[1]] = block


def _check_out(arrays, name, shape, dtype):
    if not isinstance(arrays, dict) or name not in arrays:
        raise UserError(
            f"out needs an entry for {name!r}: a dict {{name: array}} when several geometries are asked for"
        )
    array = arrays[name]
    found = str(array.dtype).removeprefix("torch.")
    wanted = str(dtype).removeprefix("torch.")
    if tuple(array.shape) != shape or found != wanted:
        raise UserError(f"out for {name} is {tuple(array.shape)} {found}; it must be {shape} {wanted}")
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise UserError(f"out for {name} is read-only; open the memory map with mode 'r+' or 'w+'")


# ---------------------------------------------------------------- torch custom op


@torch.library.custom_op("geowidth::pairwise_distances", mutates_args=())
def _op(
    x: torch.Tensor, y: torch.Tensor | None, geometries: str, radius: float, backend: str | None, threads: int | None
) -> list[torch.Tensor]:
    return _run(x, y, geometries.split(","), radius, backend, threads)


def _run(x, y, names, radius, backend, threads):
    """The matrices. What the machine decides, backend and threads (None: torch's), is asked here, never in a graph.

    Geometries of the package are served together; one from outside by itself, by whichever backend can.
    """
    threads = torch.get_num_threads() if threads is None else threads
    found: dict[str, torch.Tensor] = {}
    together = [name for name in names if name in BUILT_IN]
    for group in [together, *([name] for name in names if name not in BUILT_IN)]:
        if group:
            chosen = OPERATION.choose(x.device.type, backend, dtype=x.dtype, geometries=tuple(group))
            found |= zip(group, _run_group(chosen, x, y, group, radius, threads), strict=True)
    return [found[name] for name in names]


def _run_group(chosen, x, y, names, radius, threads):
    """The matrices of geometries that one backend serves."""
    run = chosen.run
    if chosen.name == "cuda":  # takes every dtype, and looks for zero rows while it reads them
        _distances_cuda.refuse_capture(x, names)
    else:
        x, y = (t if t is None or t.dtype == torch.float64 else t.float() for t in (x, y))
        if any(GEOMETRIES[name].directional for name in names):
            check_directions(x, "x")
            if y is not None:
                check_directions(y, "y")
    if x.dtype == torch.float64 and any(bool(_extreme(t).any()) for t in (x, y) if t is not None):
        return [_run_scaled(run, x, y, name, radius, threads) for name in names]
    return run(x, y, names, radius, threads)


def _compiled(why_not):
    """The `why_not` of a backend whose kernels know the geometries of the package and no other."""

    def answer(geometries=(), **request):
        others = ", ".join(name for name in geometries if name not in BUILT_IN)
        if others:
            return f"its kernels are for {', '.join(BUILT_IN)} only, not for {others}; use backend 'torch'"
        return why_not(**request)

    return answer


def _extreme(x):
    """(n, 1) mask of rows whose squares would overflow, or vanish."""
    if x.shape[1] == 0:
        return x.new_zeros(len(x), 1, dtype=torch.bool)
    largest = x.abs().amax(1, keepdim=True)
    return ((largest > 2.0**200) & (largest < float("inf"))) | ((largest < 2.0**-200) & (largest > 0))


def _run_scaled(run, x, y, name, radius, threads):
    """One matrix where some rows are extreme: those are scaled one by one with exact powers of two, the others are left
    alone, so that a pair's result still depends on nothing else."""
    geometry = GEOMETRIES[name]
    if geometry.directional:
        x, y = (None if t is None else torch.where(_extreme(t), unit_scale(t), t) for t in (x, y))
        return run(x, y, [name], radius, threads)[0]
    matrix = run(x, y, [name], radius, threads)[0]
    other = x if y is None else y
    for i in _extreme(x)[:, 0].nonzero()[:, 0].tolist():
        matrix[i] = geometry.between(x[i : i + 1], other, radius)[0]
        if y is None:
            matrix[:, i] = matrix[i]
    if y is not None:
        for j in _extreme(y)[:, 0].nonzero()[:, 0].tolist():
            matrix[:, j] = geometry.between(y[j : j + 1], x, radius)[0]
    return matrix


@_op.register_fake
def _(x, y, geometries, radius, backend, threads):
    columns = x.shape[0] if y is None else y.shape[0]
    dtype = _distances_cuda.result_dtype(x.dtype)
    return [x.new_empty(x.shape[0], columns, dtype=dtype) for _ in geometries.split(",")]


@torch.library.custom_op("geowidth::pairwise_distances_backward", mutates_args=())
def _backward_op(
    grads: list[torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor | None,
    geometries: str,
    radius: float,
    backend: str | None,
    threads: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    names = geometries.split(",")
    _distances_torch.check_differentiable(names)
    wide_x, wide_y = x.double(), None if y is None else y.double()
    needed = [name for name in ("raw",) if name in names] + (["spherical"] if set(names) - {"raw"} else [])
    distances = dict(zip(needed, _op(wide_x, wide_y, ",".join(needed), radius, backend, threads), strict=True))
    gx, gy = _distances_torch.gradient(grads, wide_x, wide_y, names, radius, distances)
    return gx.to(x.dtype), x.new_zeros(0) if y is None else gy.to(y.dtype)


@_backward_op.register_fake
def _(grads, x, y, geometries, radius, backend, threads):
    return torch.empty_like(x), x.new_empty(0) if y is None else torch.empty_like(y)


def _setup_context(ctx, inputs, output):
    x, y, *ctx.settings = inputs
    ctx.save_for_backward(x, y)


def _backward(ctx, grads):
    x, y = ctx.saved_tensors
    columns = x.shape[0] if y is None else y.shape[0]
    grads = [x.new_zeros(x.shape[0], columns) if g is None else g for g in grads]
    gx, gy = torch.ops.geowidth.pairwise_distances_backward(grads, x, y, *ctx.settings)
    return gx, None if y is None else gy, None, None, None, None


def _refuse_double_backward(ctx, *_):
    raise UserError(
        "pairwise_distances is differentiable once; for second derivatives use geometry.reference_distances"
    )


_op.register_autograd(_backward, setup_context=_setup_context)
_backward_op.register_autograd(_refuse_double_backward)


OPERATION = Operation(
    "pairwise_distances",
    [
        Backend("native", ("cpu",), _distances_native.run, _compiled(why_not_native)),
        Backend("cuda", ("cuda",), _distances_cuda.run, _compiled(cuda_support.why_not)),
        Backend("triton", ("cuda",), _distances_triton.run, _compiled(triton_support.why_not_cuda)),
        Backend("triton", ("cpu",), _distances_triton.run, _compiled(triton_support.why_not_cpu)),
        Backend("torch", ("cpu", "cuda"), _distances_torch.run),
    ],
    pairwise_distances_reference,
)
