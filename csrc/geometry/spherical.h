// Spherical geometry: the angle of two directions, carried as h = sin^2(t/2), t <= pi/2 the angle of the two lines,
// with the sign bit telling rows that point to opposite sides. h keeps all digits of small angles and of nearly
// opposite ones.
#pragma once

#include "geometry/elementary.h"

namespace geowidth {
namespace geometry {

// h with the sign of the cosine. cosine = x.y * (1/|x| * 1/|y|).
GEOWIDTH_HOST_DEVICE static inline double signed_half_square(double cosine) {
  return copysign(0.5 - 0.5 * magnitude(cosine), cosine);
}

// Whether h lost digits in the Gram form (a quarter of the squared chord under `share` of |u|^2 + |v|^2 = 2).
GEOWIDTH_HOST_DEVICE static inline bool angle_is_near(double half_square, double share) {
  return magnitude(half_square) < 0.5 * share;
}

// Share of the residual's square under which nothing of it is perpendicular to the base: it is the rounding of sums
// that cancel, and the rows are parallel as far as this arithmetic can tell (angles under 1e-13 for float, 1e-20 for
// double).
constexpr double parallel_share = 0x1p-40;

// h from the residual r of the shorter row a after projection on the longer row b: residual_square = |r|^2,
// along = r.b (what rounding of the projection left parallel to b).
GEOWIDTH_HOST_DEVICE static inline double half_square_from_residual(double residual_square, double along,
                                                                    double square_a, double square_b) {
  const double across = residual_square - along * along / square_b;
  double sine_square = across < parallel_share * residual_square ? 0.0 : across / square_a;
  if (sine_square > 1.0) sine_square = 1.0;
  return sine_square / (2.0 * (1.0 + square_root(1.0 - sine_square)));
}

// pi - T(pi): a subtraction from pi must not add the rounding of pi itself.
GEOWIDTH_HOST_DEVICE static inline float rest_of_pi(float) { return -8.74227766e-8f; }
GEOWIDTH_HOST_DEVICE static inline double rest_of_pi(double) { return 1.22464679914735318e-16; }

// The angle in [0, pi].
template <typename T>
GEOWIDTH_HOST_DEVICE static inline T spherical_distance(T half_square, bool opposite) {
  const T angle = T(2) * arcsine_of_root(half_square);
  return opposite ? T(3.14159265358979323846) - (angle - rest_of_pi(angle)) : angle;
}

}  // namespace geometry
}  // namespace geowidth
