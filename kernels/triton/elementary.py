"""Elementary functions on blocks of float32 or float64: the formulas of csrc/geometry/elementary.h, in the same order.

The dtype of the argument decides; square roots and quotients are rounded correctly in both.
"""

import triton
import triton.language as tl


@triton.jit
def square_root(x):
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def quotient(x, y):
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def arcsine_of_root(w):
    """asin(sqrt(w)) for 0 <= w <= 1/2."""
    if w.dtype == tl.float64:
        p = tl.fma(w, 0.8892904367638688, -3.2789331567398123)
        p = tl.fma(p, w, 5.7579408313146987)
        p = tl.fma(p, w, -6.2292998753979858)
        p = tl.fma(p, w, 4.6420689099888434)
        p = tl.fma(p, w, -2.4908808126226117)
        p = tl.fma(p, w, 1.0082016650534187)
        p = tl.fma(p, w, -0.29687054306898243)
        p = tl.fma(p, w, 0.078716113570021266)
        p = tl.fma(p, w, -0.0026015378482996879)
        p = tl.fma(p, w, 0.013191002571753904)
        p = tl.fma(p, w, 0.01380344589589198)
        p = tl.fma(p, w, 0.017364281439103528)
        p = tl.fma(p, w, 0.022371584779320353)
        p = tl.fma(p, w, 0.030381963396751829)
        p = tl.fma(p, w, 0.044642856762615003)
        p = tl.fma(p, w, 0.075000000004018161)
        p = tl.fma(p, w, 0.16666666666664987)
    else:
        p = tl.fma(w, 0.123913495, -0.135916271)
        p = tl.fma(p, w, 0.107400021)
        p = tl.fma(p, w, -0.00702057915)
        p = tl.fma(p, w, 0.0358142393)
        p = tl.fma(p, w, 0.0440916167)
        p = tl.fma(p, w, 0.0750275732)
        p = tl.fma(p, w, 0.166666142)
    root = square_root(w)
    return tl.fma(root, w * p, root)


@triton.jit
def split_exponent(x):
    """(m - 1, exponent) with x = m 2^exponent and m in [sqrt(1/2), sqrt(2)), for finite x > 0."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        shift = (bits - 0x3FE6A09E667F3BCD) >> 52
        m = (bits - (shift << 52)).to(tl.float64, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True)
        shift = (bits - 0x3F3504F3) >> 23
        m = (bits - (shift << 23)).to(tl.float32, bitcast=True)
    return m - 1.0, shift.to(x.dtype)


@triton.jit
def log_series(z):
    """log((1 + s) / (1 - s)) / s as a polynomial in z = s^2."""
    if z.dtype == tl.float64:
        p = tl.fma(z, 0.14809840930851814, 0.15312515662478014)
        p = tl.fma(p, z, 0.18183632146475035)
        p = tl.fma(p, z, 0.22222197048153643)
        p = tl.fma(p, z, 0.28571428760721908)
        p = tl.fma(p, z, 0.39999999999301984)
        p = tl.fma(p, z, 0.66666666666667646)
    else:
        p = tl.fma(z, 0.299245067, 0.399748462)
        p = tl.fma(p, z, 0.666668154)
    return tl.fma(p, z, 2.0)


@triton.jit
def log_one_plus(u):
    """log(1 + u) for finite u >= 0; what 1 + u loses comes back as (u - ((1 + u) - 1)) / (1 + u)."""
    w = 1.0 + u
    f, exponent = split_exponent(w)
    s = quotient(f, 2.0 + f)
    lost = quotient(u - (w - 1.0), w)
    return tl.fma(exponent, 0.693147180559945309417, tl.fma(s, log_series(s * s), lost))


@triton.jit
def arcsinh(a):
    """asinh(a) for a >= 0."""
    square = a * a
    return log_one_plus(a + quotient(square, 1.0 + square_root(1.0 + square)))
