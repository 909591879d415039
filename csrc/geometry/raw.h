// Raw geometry: d = |x - y|, from the Gram matrix where it is well conditioned.
#pragma once

#include "geometry/elementary.h"

namespace geowidth {
namespace geometry {

// |x - y|^2 from x.y, |x|^2 and |y|^2. May be negative by rounding only for pairs that `raw_is_near` names.
GEOWIDTH_HOST_DEVICE static inline double raw_square(double gram, double square_x, double square_y) {
  return (square_x + square_y) - (gram + gram);
}

// Whether the Gram form has lost digits: the pair's squared distance must be formed again from the rows' difference.
GEOWIDTH_HOST_DEVICE static inline bool raw_is_near(double square, double square_x, double square_y, double share) {
  return square < share * (square_x + square_y);
}

// Whether the square neither vanishes nor overflows as a T. Where it would, its root is taken in double. (A float64
// cloud's extreme rows are scaled before.)
GEOWIDTH_HOST_DEVICE static inline bool square_fits(double square, float) {
  return !(square < 0x1p-120 || square > 0x1p126);
}
GEOWIDTH_HOST_DEVICE static inline bool square_fits(double, double) { return true; }

template <typename T>
GEOWIDTH_HOST_DEVICE static inline T raw_distance(T square) {
  return square_root(square);
}

}  // namespace geometry
}  // namespace geowidth
