"""Checks of what ops on costs are given: cost matrices and weights."""

import torch

from geowidth import inputs
from geowidth.errors import UserError
from geowidth.inputs import numbers_on, refuse_entry, short
from geowidth.ops import backend, cuda_support
from geowidth.ops.backend import native

# How far c[i, j] and c[j, i] may differ, relative to the largest entry: rounding, not another matrix.
SYMMETRY_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}

LEAST_WEIGHT = 1e-150  # products of two weights stay numbers above 0


def cost_pair(c1, c2, threads, same_size):
    """Both cost matrices, (n, n) and (m, m), on one device, of one dtype, float32 or float64, rows contiguous."""
    c1, c2 = _matrix(c1, "c1"), _matrix(c2, "c2")
    if c1.device != c2.device:
        raise UserError(f"c1 is on {c1.device} and c2 on {c2.device}; move one of them")
    if c1.dtype != c2.dtype:
        raise UserError(f"c1 is {short(c1.dtype)} and c2 {short(c2.dtype)}; convert one of them")
    if same_size and len(c1) != len(c2):
        raise UserError(
            f"c1 has {len(c1)} points and c2 {len(c2)}; the statistic needs equal numbers (uniform weights): "
            "entropic_gromov_wasserstein takes different ones"
        )
    if c1.device.type == "cpu" or not _in_order_on_device(c1, c2):
        for matrix, name in ((c1, "c1"), (c2, "c2")):
            _refuse_faults(matrix, name, threads)
    return c1, c2


def _in_order_on_device(*matrices):
    """Whether all are finite and symmetric, with one wait for the device."""
    facts = torch.stack([_symmetry_facts(matrix) for matrix in matrices]).tolist()
    allowed = [SYMMETRY_TOLERANCE[matrix.dtype] for matrix in matrices]
    return all(size < float("inf") and worst <= a * size for a, (size, worst) in zip(allowed, facts, strict=True))


def _symmetry_facts(matrix):
    """(2,) float64: the largest |c_ij|, not finite if one is not, and the largest |c_ij - c_ji|."""
    if cuda_support.why_not() is None:
        return symmetry_facts(matrix)
    worst = torch.maximum(*(matrix - matrix.T).aminmax())
    return torch.stack([matrix.abs().amax(), worst]).double()


def symmetry_facts(c):
    """(2,) float64 on the device of c: the largest |c_ij|, infinite if any is not finite, and |c_ij - c_ji|."""
    module = backend.cuda()[0]
    out = c.new_empty(2 + module.tile_scratch, dtype=torch.float64)
    with cuda_support.on_device(c):
        module.symmetry(c, out[2:], out, cuda_support.stream(c))
    return out[:2]


def _matrix(value, name):
    matrix = inputs.tensor(name, value).detach()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UserError(f"{name} has shape {tuple(matrix.shape)}; a square matrix (n, n) is needed")
    if len(matrix) == 0:
        raise UserError(f"{name} is empty; at least one point is needed")
    if matrix.dtype not in SYMMETRY_TOLERANCE:
        matrix = matrix.float()
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _refuse_faults(matrix, name, threads):
    kind, i, j = _fault(matrix, threads)
    if kind == 1:
        raise UserError(f"{name}[{i}, {j}] is {matrix[i, j].item()}; all entries must be finite")
    if kind == 2:
        here, there = matrix[i, j].item(), matrix[j, i].item()
        raise UserError(f"{name} is not symmetric: {name}[{i}, {j}] is {here:g} but {name}[{j}, {i}] is {there:g}")


def _fault(matrix, threads):
    module, _ = native()
    tolerance = SYMMETRY_TOLERANCE[matrix.dtype]
    if module is not None and matrix.device.type == "cpu":
        return module.symmetric_fault(matrix, tolerance, threads)
    bad = ~torch.isfinite(matrix)
    kind = 1
    if not bad.any():
        bad = ((matrix - matrix.T).abs() > tolerance * matrix.abs().max()).triu()
        kind = 2
    if not bad.any():
        return 0, 0, 0
    return kind, *divmod(int(bad.flatten().int().argmax()), len(matrix))


def weights(value, count, name, device="cpu"):
    """Weights as a float64 tensor (count,) on `device`, moved there from the CPU; None means uniform. Positive, summing
    to 1 (to 1e-5, then exactly)."""
    device = torch.device(device)
    if value is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64, device=device)
    value = numbers_on(name, value, device)
    if value.shape != (count,):
        raise UserError(f"{name} has shape {tuple(value.shape)}; weights of shape ({count},) are needed")
    wrong = ~(torch.isfinite(value) & (value > 0))
    refuse_entry(name, value, wrong, "weights must be positive (leave points of weight 0 out)")
    refuse_entry(name, value, value < LEAST_WEIGHT, f"weights from {LEAST_WEIGHT:g} up are allowed (leave it out)")
    total = value.sum().item()
    if abs(total - 1) > 1e-5:
        raise UserError(f"{name} sums to {total:g}; weights must sum to 1: divide them by their sum")
    return value / total
