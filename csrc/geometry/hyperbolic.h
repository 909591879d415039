// Hyperbolic geometry: directions on the sphere of radius r in the Poincare ball of curvature -1,
// d = 2 asinh(scale * chord), scale = r / (1 - r^2).
#pragma once

#include "geometry/elementary.h"

namespace geowidth {
namespace geometry {

// half_square and opposite as in spherical.h: chord = 2 sqrt(h), or 2 sqrt(1 - h) for opposite sides.
template <typename T>
GEOWIDTH_HOST_DEVICE static inline T hyperbolic_distance(T half_square, bool opposite, T scale) {
  const T half_chord_square = opposite ? T(1) - half_square : half_square;
  return T(2) * arcsinh((scale + scale) * square_root(half_chord_square));
}

}  // namespace geometry
}  // namespace geowidth
