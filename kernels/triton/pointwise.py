"""Activations and their slopes on blocks of float32 (float64 only in the interpreter)."""

import triton
import triton.language as tl

# Numbered as geowidth/ops/activation/operation.py numbers them.
SILU = tl.constexpr(0)
GELU = tl.constexpr(1)
GELU_TANH = tl.constexpr(2)
RELU = tl.constexpr(3)
RELU2 = tl.constexpr(4)


@triton.jit
def bounded(x, LIMIT: tl.constexpr):
    """x clamped to +-LIMIT; a NaN stays one."""
    x = tl.where(x < -LIMIT, -LIMIT, x)
    return tl.where(x > LIMIT, LIMIT, x)


@triton.jit
def logistic(x):
    """1 / (1 + exp(-x)) and exp(-x) / (1 + exp(-x)), both precise. |x| up to 80."""
    e = tl.exp(-x)
    s = 1.0 / (1.0 + e)
    return s, e * s


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """act(x)."""
    value, _ = activate_with_slope(x, ACTIVATION)
    return value


@triton.jit
def activate_with_slope(x, ACTIVATION: tl.constexpr):
    """act(x), act'(x)."""
    if ACTIVATION == SILU:
        c = bounded(x, 80.0)
        s, complement = logistic(c)
        value = tl.where(x < -80.0, -80.0, x) * s
        slope = s * (1.0 + c * complement)
    elif ACTIVATION == GELU:
        c = bounded(x, 40.0)
        distribution = 0.5 + 0.5 * tl.erf(c * 0.7071067811865476)
        value = tl.where(x < -40.0, -40.0, x) * distribution
        slope = distribution + c * tl.exp(-0.5 * c * c) * 0.3989422804014327
    elif ACTIVATION == GELU_TANH:
        # x (1 + tanh z) / 2 = x logistic(2 z); saturated well before |x| = 9.
        c = bounded(x, 9.0)
        s, complement = logistic(c * (1.5957691216057308 + 0.07135481627260025 * c * c))
        value = tl.where(x < -9.0, -9.0, x) * s
        slope = s * (1.0 + c * complement * (1.5957691216057308 + 0.21406444881780074 * c * c))
    elif ACTIVATION == RELU:
        value = tl.where(x < 0.0, 0.0, x)
        slope = tl.where(x > 0.0, 1.0, tl.where(x < 0.0, 0.0, x))
    else:
        r = tl.where(x < 0.0, 0.0, x)
        value = r * r
        slope = 2.0 * r
    return value, slope


@triton.jit
def backward(g, u, gradient, ACTIVATION: tl.constexpr, GATED: tl.constexpr):
    """(gradient of g, gradient of u, h) from projections and the gradient of h; ungated, the first is u's too."""
    if GATED:
        value, slope = activate_with_slope(g, ACTIVATION)
        return gradient * slope * u, gradient * value, value * u
    else:
        value, slope = activate_with_slope(u, ACTIVATION)
        return gradient * slope, gradient * slope, value
