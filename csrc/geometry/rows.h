// Pieces of what is computed from two raw rows where the Gram matrix is not accurate enough. The loops over the columns
// are the backends' own: csrc/cpu/distances.simd.cpp, kernels/cuda/rows.h.
#pragma once

#include "geometry/spherical.h"

namespace geowidth {
namespace geometry {

// Whether row x comes after row y in dictionary order.
template <typename T>
GEOWIDTH_HOST_DEVICE static inline bool comes_after(const T* x, const T* y, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k)
    if (x[k] != y[k]) return x[k] > y[k];
  return false;
}

// The two rows in an order that does not depend on which is called x: the shorter a, to be projected on the longer b
// (for equal norms the later in dictionary order).
template <typename T>
struct OrderedRows {
  const T* a;
  const T* b;
  double square_a, square_b;
};

template <typename T>
GEOWIDTH_HOST_DEVICE static inline OrderedRows<T> ordered(const T* x, const T* y, int64_t depth, double square_x,
                                                          double square_y) {
  const bool x_is_base = square_x > square_y || (square_x == square_y && comes_after(x, y, depth));
  if (x_is_base) return {y, x, square_y, square_x};
  return {x, y, square_x, square_y};
}

// a.b / b.b for a residual a - factor b that is rounded only once. Against float rows 24 bits of the factor are kept,
// so that factor * b is exact in double; the error this leaves is parallel to b and taken out afterwards.
GEOWIDTH_HOST_DEVICE static inline double projection_factor(double dot, double square_b, const float*) {
  const double factor = dot / square_b;
  int64_t bits;
  memcpy(&bits, &factor, sizeof bits);
  bits &= ~int64_t(0x1fffffff);
  double kept;
  memcpy(&kept, &bits, sizeof kept);
  return kept;
}
GEOWIDTH_HOST_DEVICE static inline double projection_factor(double dot, double square_b, const double*) {
  return dot / square_b;
}

}  // namespace geometry
}  // namespace geowidth
