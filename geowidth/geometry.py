"""The geometries in which work is measured, in float64: the reference that every backend is compared with.

With u = x/|x|, v = y/|y| and the chord c = |u - v|:

    raw         d = |x - y|
    spherical   d = angle(u, v), in [0, pi]
    hyperbolic  d = 2 asinh(r c / (1 - r^2)): the Poincare distance (curvature -1) of r u and r v, 0 < r < 1

No arccos of a clipped cosine, no arccosh, no clamped norm: those lose half the digits of small distances. Everything
here is torch in float64, on whichever device its input is. GEOMETRIES is the table of them; a module outside the
package adds its own with `GEOMETRIES.register(Geometry(...))` (see geowidth.registry).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from geowidth import signals
from geowidth.errors import UserError, number, shown
from geowidth.inputs import ArrayLike, array, tensor
from geowidth.registry import Registry

HYPERBOLIC_RADIUS = math.tanh(1.0)
"""Radius of the sphere inside the Poincare ball on which directions are placed: the exponential map at the origin of a
unit tangent vector has norm tanh(1) when the metric there is 2 |dx| (Ganea et al., "Hyperbolic Neural Networks")."""
BUILT_IN = signals.GEOMETRIES
"""The geometries that compiled kernels know, in the order in which they take them, and the ones measured by default."""
ANGLE = "spherical"
"""The geometry whose distance is the angle itself."""


# Words that stand beside geometries in options and in the details of result files.
RESERVED = (
    "all",
    "bands",
    "dimension",
    "large_norm_tokens",
    "quantiles",
    "raw_without_large_norms",
    "subsample",
    "subsamples",
)


@dataclass(frozen=True)
class Geometry:
    """What a geometry is, by functions of float64 tensors; `radius` is the option of that name.

    name             its name in options and result files
    directional      whether it sees only the direction of a row: then a zero row has no place in it
    unit             the unit of its distances and of every statistic made of them
    pairwise         (x, y, radius): distances (n, m) of every row of x (n, d) to every row of y (m, d), zero for equal
                     rows and symmetric. Rows of a directional geometry come with length 1
    paired           (x, y, radius): distance (n,) of row i of x to row i of y, both (n, d). Default: by `pairwise`
    from_angle       (angle, radius): the distance of two directions at an angle in [0, pi], of any shape. An increasing
                     map with from_angle(0) = 0: the persistence diagrams of spherical distances are then mapped, and
                     `pairwise` need not be given. For directional geometries
    from_half_angle  (sine, same_side, radius): the same from sin(t/2), t the angle of the two lines (at most pi/2), and
                     whether the rows point to the same side. Default: from_angle; one that keeps the digits of
                     nearly opposite rows may be given
    slope            (angle, radius): the derivative of from_angle; without it distances have no gradient
    arrays           whether from_angle takes numpy arrays as well as tensors

    A state that rounding moves by e is taken to change its distances by at most e (from_angle(e / norm) where that is
    given): states closer than that are one point for persistence and dimension.
    """

    name: str
    directional: bool
    unit: str
    pairwise: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None = None
    paired: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None = None
    from_angle: Callable[[Any, float], Any] | None = None
    from_half_angle: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None = None
    slope: Callable[[torch.Tensor, float], torch.Tensor] | None = None
    arrays: bool = False

    def __post_init__(self):
        if self.name in RESERVED:
            raise UserError(
                f"a geometry cannot be called {self.name}, a word with a meaning of its own; name it otherwise"
            )
        if self.pairwise is None and self.from_angle is None:
            raise UserError(f"geometry {shown(self.name)} has neither pairwise nor from_angle; give one of them")
        if self.from_angle is not None and not self.directional:
            raise UserError(f"geometry {shown(self.name)} has from_angle and is not directional; set directional=True")
        if self.slope is not None and self.from_angle is None:
            raise UserError(f"geometry {shown(self.name)} has slope without from_angle; give both, or leave slope out")

    @property
    def angular(self) -> bool:
        """Whether its distance is an increasing map of the angle."""
        return self.from_angle is not None

    def of_angle(self, angle: Any, radius: float) -> Any:
        """from_angle of float64 angles: a tensor for a tensor, a numpy array (or scalar) for all else."""
        assert self.from_angle is not None  # asked of angular geometries alone
        if isinstance(angle, torch.Tensor):
            return self._checked(self.from_angle(angle, radius), angle.shape, "from_angle")
        if self.arrays:
            return self.from_angle(angle, radius)
        return self.of_angle(torch.from_numpy(np.array(angle, dtype=np.float64)), radius).numpy()

    def of_half_angle(self, sine: torch.Tensor, same_side: torch.Tensor, radius: float) -> torch.Tensor:
        """The distances at float64 (sine, same_side) as `half_angle_sine` gives them."""
        if self.from_half_angle is not None:
            return self.from_half_angle(sine, same_side, radius)
        return self.of_angle(_angle(sine, same_side, radius), radius)

    def between(self, x: torch.Tensor, y: torch.Tensor, radius: float) -> torch.Tensor:
        """`pairwise` of float64 rows (those of a directional geometry have length 1), or the angle's map."""
        if self.pairwise is None:
            return self.of_angle(GEOMETRIES[ANGLE].between(x, y, radius), radius)
        return self._checked(self.pairwise(x, y, radius), (len(x), len(y)), "pairwise")

    def along(self, x: torch.Tensor, y: torch.Tensor, radius: float) -> torch.Tensor:
        """`paired` of float64 rows that `between` would take."""
        if self.paired is not None:
            return self._checked(self.paired(x, y, radius), (len(x),), "paired")
        blocks = zip(x.split(PAIRED_ROWS), y.split(PAIRED_ROWS), strict=True)
        return torch.cat([self.between(a, b, radius).diagonal() for a, b in blocks])

    def _checked(self, found, shape, function):
        """What a function gave, if it is distances of that shape."""
        good = isinstance(found, torch.Tensor) and found.dtype == torch.float64 and found.shape == torch.Size(shape)
        if not good:
            dtype = getattr(found, "dtype", "")
            raise UserError(
                f"{function} of the geometry {self.name!r} gave {shown(found)} {dtype}; needed: a float64 tensor "
                f"{tuple(shape)}"
            )
        return found


PAIRED_ROWS = 64  # of a cloud at a time, where paired distances are the diagonal of pairwise ones


def check_radius(radius: float) -> float:
    """`radius` as a float, or a UserError unless 0 < radius < 1."""
    return number("radius", radius, "a number above 0 and below 1 (default tanh(1) = 0.7616)", lambda r: 0 < r < 1)


def chord_scale(radius: float) -> float:
    """r / (1 - r^2), by which the chord is multiplied inside asinh."""
    return radius / ((1 - radius) * (1 + radius))


def hyperbolic_from_angle(angle: ArrayLike, radius: float = HYPERBOLIC_RADIUS) -> torch.Tensor | np.ndarray:
    """The hyperbolic distance of two directions at `angle` (radians, in [0, pi]; whatever geowidth.inputs takes).

    An increasing map of [0, pi], so it turns spherical distances, births and deaths into hyperbolic ones. float64: a
    tensor for a tensor, a numpy array (or scalar) for all else.
    """
    scale = 2 * chord_scale(check_radius(radius))
    if isinstance(angle, torch.Tensor):
        return 2 * torch.asinh(scale * torch.sin(tensor("angle", angle).double() / 2))
    return 2 * np.arcsinh(scale * np.sin(array("angle", angle).astype(np.float64) / 2))


def check_directions(x: torch.Tensor, name: str = "x") -> None:
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


def hyperbolic_slope(angle: torch.Tensor, radius: float) -> torch.Tensor:
    """The derivative of `hyperbolic_from_angle` at float64 tensors."""
    scale = 2 * chord_scale(radius)
    return scale * torch.cos(angle / 2) / torch.sqrt(1 + (scale * torch.sin(angle / 2)).square())


def reference_distances(
    x: ArrayLike, y: ArrayLike | None = None, geometry: str = "raw", radius: float = HYPERBOLIC_RADIUS
) -> torch.Tensor:
    """Distances of every row of `x` (n, d) to every row of `y` (m, d; `x` if None): float64 (n, m).

    The plain definitions on explicit differences of float64 rows, without a Gram matrix: slow, the oracle of the tests.
    Raises UserError for a zero row in a directional geometry, an unknown geometry, or a radius outside (0, 1).
    """
    geometry, radius = GEOMETRIES[geometry], check_radius(radius)
    first = tensor("x", x, ("n", "d")).double()
    second = first if y is None else tensor("y", y, ("m", "d")).double()
    if first.shape[1] != second.shape[1]:
        raise UserError(f"x is {tuple(first.shape)} and y is {tuple(second.shape)}; both need as many columns")
    if geometry.directional:
        check_directions(first, "x")
        check_directions(second, "x" if y is None else "y")
        first, second = unit_rows(first), unit_rows(second)
    return geometry.between(first, second, radius)


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows of float64 `x` (n, d), none of them zero, brought to length 1."""
    scaled = unit_scale(x)
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)


def paired_distances(
    x: ArrayLike, y: ArrayLike, geometry: str = "raw", radius: float = HYPERBOLIC_RADIUS
) -> torch.Tensor:
    """Distance of row i of `x` to row i of `y`, both (n, d), whatever geowidth.inputs takes: float64 (n,).

    Accurate to a few units in the last place of float64 however close, parallel or opposite the two rows are (a layer
    that changes its states by one part in 10^9 still has the right shift). Raises UserError as `reference_distances`
    does.
    """
    geometry, radius = GEOMETRIES[geometry], check_radius(radius)
    x, y = tensor("x", x).double(), tensor("y", y).double()
    if x.shape != y.shape or x.ndim != 2:
        raise UserError(f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; rows need equal ones (n, d)")
    if not geometry.directional:
        return geometry.along(x, y, radius)
    check_directions(x, "x")
    check_directions(y, "y")
    if geometry.angular:
        return geometry.of_half_angle(*half_angle_sine(x, y), radius)
    return geometry.along(unit_rows(x), unit_rows(y), radius)


def _by_rows(distance):
    """A `pairwise` function that takes one row of x at a time: distance(row, y, radius) gives (m,)."""

    def pairwise(x, y, radius):
        rows = [distance(row, y, radius) for row in x]
        return torch.stack(rows) if rows else x.new_zeros(0, len(y))

    return pairwise


def _raw(row, others, _):
    return row_norms(row - others)


def _spherical(row, others, _):
    return 2 * torch.atan2(row_norms(row - others), torch.linalg.vector_norm(row + others, dim=1))


def _hyperbolic(row, others, radius):
    return 2 * torch.asinh(chord_scale(radius) * row_norms(row - others))


def _angle(sine, same_side, _):
    """The angle by sin(t/2): that keeps all digits of small angles and of nearly opposite ones."""
    angle = 2 * torch.asin(sine)
    return torch.where(same_side, angle, math.pi - angle)


def _hyperbolic_from_half_angle(sine, same_side, radius):
    half_chord = torch.where(same_side, sine, torch.sqrt((1 - sine) * (1 + sine)))
    return 2 * torch.asinh(2 * chord_scale(radius) * half_chord)


GEOMETRIES = Registry(
    "geometry",
    Geometry,
    [
        Geometry("raw", False, "length", _by_rows(_raw), lambda x, y, _: row_norms(x - y)),
        Geometry(
            "spherical",
            True,
            "radian",
            _by_rows(_spherical),
            from_angle=lambda angle, _: angle,
            from_half_angle=_angle,
            slope=lambda angle, _: torch.ones_like(angle),
            arrays=True,
        ),
        Geometry(
            "hyperbolic",
            True,
            "hyperbolic length",
            _by_rows(_hyperbolic),
            from_angle=hyperbolic_from_angle,
            from_half_angle=_hyperbolic_from_half_angle,
            slope=hyperbolic_slope,
            arrays=True,
        ),
    ],
)


def half_angle_sine(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """|x_i| of float64 `x` (..., d), also where the squares of its entries overflow or vanish."""
    exponent = _exponents(x)
    norms = torch.linalg.vector_norm(times_power_of_two(x, -exponent), dim=-1)
    return times_power_of_two(norms, exponent[..., 0])


def unit_scale(x: torch.Tensor) -> torch.Tensor:
    """Rows of float64 `x` times powers of two that bring the largest entry near 1 (exact, and squares stay finite)."""
    return times_power_of_two(x, -_exponents(x))


def _exponents(x):
    """Binary exponents of the largest entries of the rows of `x` (..., d): integers (..., 1), 0 where d is 0."""
    if x.shape[-1] == 0:
        return torch.zeros((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
    return torch.frexp(x.detach().abs().amax(-1, keepdim=True)).exponent


def times_power_of_two(x: torch.Tensor, exponent: torch.Tensor | int) -> torch.Tensor:
    """x 2^exponent in float64, exponent an integer or a tensor of them. (torch.ldexp goes through float32.)"""
    exponent = torch.as_tensor(exponent, device=x.device).clamp(-1000, 1000)
    return x * ((exponent.long() + 1023) << 52).view(torch.float64)


def residual_terms(
    a: torch.Tensor, b: torch.Tensor, square_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def poincare_distance(x: ArrayLike, y: ArrayLike, curvature: float = -1.0) -> torch.Tensor:
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
