"""The three geometries in which work is measured, in float64: the reference that every backend is compared with.

With u = x/|x|, v = y/|y| and the chord c = |u - v|:

    raw         d = |x - y|
    spherical   d = angle(u, v), in [0, pi]
    hyperbolic  d = 2 asinh(r c / (1 - r^2)): the Poincare distance (curvature -1) of r u and r v, 0 < r < 1

No arccos of a clipped cosine, no arccosh, no clamped norm: those lose half the digits of small distances. Everything
here is torch in float64, on whichever device its input is.
"""

import math
from dataclasses import dataclass

import torch

from geowidth.errors import UserError, choose, number
from geowidth.inputs import array, tensor

HYPERBOLIC_RADIUS = math.tanh(1.0)
"""Radius of the sphere inside the Poincare ball on which directions are placed: the exponential map at the origin of a
unit tangent vector has norm tanh(1) when the metric there is 2 |dx| (Ganea et al., "Hyperbolic Neural Networks")."""


@dataclass(frozen=True)
class Geometry:
    """What a geometry is.

    name          its name in options and result files
    directional   whether it sees only the direction of a row: then a zero row has no place in it
    unit          the unit of its distances and of every statistic made of them
    """

    name: str
    directional: bool
    unit: str


GEOMETRIES = {
    g.name: g
    for g in (
        Geometry("raw", False, "length"),
        Geometry("spherical", True, "radian"),
        Geometry("hyperbolic", True, "hyperbolic length"),
    )
}


def check_radius(radius):
    """`radius` as a float, or a UserError unless 0 < radius < 1."""
    return number("radius", radius, "a number above 0 and below 1 (default tanh(1) = 0.7616)", lambda r: 0 < r < 1)


def chord_scale(radius):
    """r / (1 - r^2), by which the chord is multiplied inside asinh."""
    return radius / ((1 - radius) * (1 + radius))


def hyperbolic_from_angle(angle, radius=HYPERBOLIC_RADIUS):
    """The hyperbolic distance of two directions at `angle` (radians, in [0, pi]; whatever geowidth.inputs takes).

    An increasing map of [0, pi], so it turns spherical distances, births and deaths into hyperbolic ones. float64: a
    tensor for a tensor, a numpy array (or scalar) for all else.
    """
    scale = 2 * chord_scale(check_radius(radius))
    if isinstance(angle, torch.Tensor):
        return 2 * torch.asinh(scale * torch.sin(tensor("angle", angle).double() / 2))
    import numpy

    return 2 * numpy.arcsinh(scale * numpy.sin(array("angle", angle).astype(numpy.float64) / 2))


def check_directions(x, name="x"):
    """Raise a UserError naming the first zero row of `x` (n, d), which has no direction."""
    if x.shape[0] == 0:
        return
    zero = x.abs().amax(1) == 0 if x.shape[1] else torch.ones(x.shape[0], dtype=torch.bool)
    if bool(zero.any()):
        row = int(zero.nonzero()[0])
        raise UserError(
            f"row {row} of {name} is zero and has no direction; drop it, or use the raw geometry "
            "(spherical and hyperbolic distances need directions)"
        )


def reference_distances(x, y=None, geometry="raw", radius=HYPERBOLIC_RADIUS):
    """Distances of every row of `x` (n, d) to every row of `y` (m, d; `x` if None): float64 (n, m).

    The plain definitions on explicit differences of float64 rows, without a Gram matrix: slow, the oracle of the tests.
    Raises UserError for a zero row in a directional geometry, an unknown geometry, or a radius outside (0, 1).
    """
    choose("geometry", geometry, GEOMETRIES)
    scale = chord_scale(check_radius(radius))
    first = tensor("x", x, ("n", "d")).double()
    second = first if y is None else tensor("y", y, ("m", "d")).double()
    if first.shape[1] != second.shape[1]:
        raise UserError(f"x is {tuple(first.shape)} and y is {tuple(second.shape)}; both need as many columns")
    if GEOMETRIES[geometry].directional:
        check_directions(first, "x")
        check_directions(second, "x" if y is None else "y")
        units = (unit_scale(t) for t in (first, second))
        first, second = (t / torch.linalg.vector_norm(t, dim=1, keepdim=True) for t in units)
    rows = [_reference_row(row, second, geometry, scale) for row in first]
    return torch.stack(rows) if rows else first.new_zeros(0, len(second))


def _reference_row(row, others, geometry, scale):
    chord = row_norms(row - others)
    if geometry == "raw":
        return chord
    if geometry == "spherical":
        return 2 * torch.atan2(chord, torch.linalg.vector_norm(row + others, dim=1))
    return 2 * torch.asinh(scale * chord)


def paired_distances(x, y, geometry="raw", radius=HYPERBOLIC_RADIUS):
    """Distance of row i of `x` to row i of `y`, both (n, d), whatever geowidth.inputs takes: float64 (n,).

    Accurate to a few units in the last place of float64 however close, parallel or opposite the two rows are (a layer
    that changes its states by one part in 10^9 still has the right shift). Raises UserError as `reference_distances`
    does.
    """
    choose("geometry", geometry, GEOMETRIES)
    scale = chord_scale(check_radius(radius))
    x, y = tensor("x", x).double(), tensor("y", y).double()
    if x.shape != y.shape or x.ndim != 2:
        raise UserError(f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; rows need equal ones (n, d)")
    if geometry == "raw":
        return row_norms(x - y)
    check_directions(x, "x")
    check_directions(y, "y")
    sine, same_side = half_angle_sine(x, y)
    return distance_from_half_angle(sine, same_side, geometry, scale)


def distance_from_half_angle(sine, same_side, geometry, scale):
    """Spherical or hyperbolic distance from sin(t/2), t the angle of the two lines (at most pi/2), and whether the rows
    point to the same side: sin(t/2) keeps all digits of small angles and of nearly opposite ones."""
    if geometry == "spherical":
        angle = 2 * torch.asin(sine)
        return torch.where(same_side, angle, math.pi - angle)
    half_chord = torch.where(same_side, sine, torch.sqrt((1 - sine) * (1 + sine)))
    return 2 * torch.asinh(2 * scale * half_chord)


def half_angle_sine(x, y):
    """(sin(t/2), same side) for non-zero float64 rows x_i, y_i of (n, d), t in [0, pi/2] the angle of their lines.

    The longer row b is the base (for equal norms the larger in dictionary order, so that swapping x and y changes no
    bit); the other's residual a - (a.b / b.b) b is formed without rounding the product and once more freed of b, so
    that the relative error of t stays near float64's own for any ratio of norms and any small t.
    """
    x, y = unit_scale(x), unit_scale(y)
    square_x, square_y = (x * x).sum(1), (y * y).sum(1)
    swap = (square_x > square_y) | ((square_x == square_y) & _larger(x, y))
    a, b = torch.where(swap[:, None], y, x), torch.where(swap[:, None], x, y)
    square_a, square_b = torch.where(swap, square_y, square_x), torch.where(swap, square_x, square_y)
    dot, square = residual_terms(a, b, square_b)[1:]
    sine_square = (square / square_a).clamp(max=1)
    # Under 2^-98 the residual is the rounding of the projection: the rows are parallel as far as float64 can tell.
    sine_square = torch.where(sine_square < 2.0**-196, torch.zeros_like(sine_square), sine_square)
    return torch.sqrt(sine_square / (2 * (1 + torch.sqrt(1 - sine_square)))), dot >= 0


def row_norms(x):
    """|x_i| of float64 `x` (..., d), also where the squares of its entries overflow or vanish."""
    exponent = _exponents(x)
    norms = torch.linalg.vector_norm(times_power_of_two(x, -exponent), dim=-1)
    return times_power_of_two(norms, exponent[..., 0])


def unit_scale(x):
    """Rows of float64 `x` times powers of two that bring the largest entry near 1 (exact, and squares stay finite)."""
    return times_power_of_two(x, -_exponents(x))


def _exponents(x):
    """Binary exponents of the largest entries of the rows of `x` (..., d): integers (..., 1), 0 where d is 0."""
    if x.shape[-1] == 0:
        return torch.zeros((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
    return torch.frexp(x.detach().abs().amax(-1, keepdim=True)).exponent


def times_power_of_two(x, exponent):
    """x 2^exponent in float64, exponent an integer or a tensor of them. (torch.ldexp goes through float32.)"""
    exponent = torch.as_tensor(exponent, device=x.device).clamp(-1000, 1000)
    return x * ((exponent.long() + 1023) << 52).view(torch.float64)


def residual_terms(a, b, square_b):
    """(r, a.b, |r|^2) for rows of float64 (n, d), r the part of a_i perpendicular to b_i, square_b = |b_i|^2."""
    dot = (a * b).sum(1)
    factor = (dot / square_b)[:, None].expand_as(b)
    product, tail = _two_product(factor, b)
    residual = (a - product) - tail
    along = ((residual * b).sum(1) / square_b)[:, None]
    residual = residual - along * b
    return residual, dot, (residual * residual).sum(1)


def _two_product(a, b):
    """(p, e) with p + e = a b exactly (Dekker 1971, Veltkamp splitting)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a):
    c = a * 134217729.0  # 2^27 + 1
    high = c - (c - a)
    return high, a - high


def _larger(x, y):
    """Whether row x_i comes after y_i in dictionary order."""
    if x.shape[1] == 0:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    first = (x != y).byte().argmax(1, keepdim=True)
    return (x.gather(1, first) > y.gather(1, first))[:, 0]


def poincare_distance(x, y, curvature=-1.0):
    """Distance of point x_i to y_i in the Poincare ball of the given negative curvature: float64, shape of the leading
    axes.

    x, y    (..., d), whatever geowidth.inputs takes: points with |x| < 1 / sqrt(-curvature)

    d = 2/sqrt(k) asinh(sqrt(k) |x - y| / sqrt((1 - k |x|^2)(1 - k |y|^2))), k = -curvature (Nickel and Kiela 2017 in a
    form that loses no digits near 0 or at the rim). Nothing is clipped: a point on or outside the rim, also by the
    rounding of its dtype, raises a UserError that names the row.
    """
    curvature = number("curvature", curvature, "a finite number below 0 (default -1)", lambda c: -math.inf < c < 0)
    x, y = tensor("x", x), tensor("y", y)
    if x.ndim == 0 or x.shape != y.shape:
        raise UserError(f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; points need equal ones (..., d)")
    root = math.sqrt(-curvature)
    x, y = x.double() * root, y.double() * root
    room = _room(x, "x", root) * _room(y, "y", root)
    return 2 / root * torch.asinh(row_norms(x - y) / torch.sqrt(room))


def _room(x, name, root):
    """1 - |x|^2 as (1 - |x|)(1 + |x|)."""
    norm = torch.linalg.vector_norm(x, dim=-1)
    outside = ~(norm < 1)
    if bool(outside.any()):
        row = int(outside.flatten().nonzero()[0])
        raise UserError(
            f"row {row} of {name} has norm {norm.flatten()[row] / root:.9g}, not inside the ball of radius "
            f"{1 / root:.9g}; give float64 points if rounding put it on the rim, or rescale them"
        )
    return (1 - norm) * (1 + norm)
