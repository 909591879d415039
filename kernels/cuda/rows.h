// What a warp computes from raw rows: sums over the columns of two rows, read 16 bytes at a time where both rows are
// aligned to that, one number at a time (still side by side) where they are not. Everything is summed in double, in an
// order that depends on the number of columns and the alignment alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"
#include "geometry/rows.h"
#include "warp.h"

namespace geowidth {
namespace cuda {

__device__ inline double wide(double x) { return x; }
__device__ inline double wide(float x) { return static_cast<double>(x); }
__device__ inline double wide(__half x) { return static_cast<double>(__half2float(x)); }
__device__ inline double wide(__nv_bfloat16 x) { return static_cast<double>(__bfloat162float(x)); }

template <typename T>
struct RowPiece {
  static constexpr int size = 16 / sizeof(T);
  T value[size];
};

template <typename T>
__device__ __forceinline__ RowPiece<T> load_piece(const T* address) {
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(address));
  RowPiece<T> piece;
  memcpy(&piece, &bits, sizeof piece);
  return piece;
}

// body(x_k, y_k) as doubles, for this lane's share of the columns k.
template <typename T, typename Body>
__device__ __forceinline__ void over_columns(const T* x, const T* y, int64_t depth, const Body& body) {
  const int lane = threadIdx.x % warp_size;
  const int64_t paired = at_16_bytes(x) && at_16_bytes(y) ? depth / RowPiece<T>::size * RowPiece<T>::size : 0;
#pragma unroll 2
  for (int64_t k = static_cast<int64_t>(lane) * RowPiece<T>::size; k < paired; k += warp_size * RowPiece<T>::size) {
    const RowPiece<T> a = load_piece(x + k), b = load_piece(y + k);
#pragma unroll
    for (int v = 0; v < RowPiece<T>::size; ++v) body(wide(a.value[v]), wide(b.value[v]));
  }
  for (int64_t k = paired + lane; k < depth; k += warp_size) body(wide(x[k]), wide(y[k]));
}

template <typename T>
__device__ double warp_dot(const T* x, const T* y, int64_t depth) {
  double sum = 0;
  over_columns(x, y, depth, [&](double a, double b) { sum = fma(a, b, sum); });
  return warp_sum(sum);
}

// |x - y|^2.
template <typename T>
__device__ double warp_square(const T* x, const T* y, int64_t depth) {
  double sum = 0;
  over_columns(x, y, depth, [&](double a, double b) { sum = fma(a - b, a - b, sum); });
  return warp_sum(sum);
}

// The factor of the projection is exact against rows of at most 24 bits, rounded against double ones (geometry/rows.h).
template <typename T>
struct Narrow {
  using type = float;
};
template <>
struct Narrow<double> {
  using type = double;
};

// sin^2(t/2) of the angle t <= pi/2 between the two lines: the shorter row a is projected on the longer row b. `dot`
// need not be accurate: what its error leaves in the residual is parallel to b and taken out.
template <typename T>
__device__ double warp_half_square(const T* x, const T* y, int64_t depth, double square_x, double square_y,
                                   double dot) {
  const bool x_is_base = square_x > square_y;
  const T* a = x_is_base ? y : x;
  const T* b = x_is_base ? x : y;
  const double square_a = x_is_base ? square_y : square_x, square_b = x_is_base ? square_x : square_y;
  const double factor =
      geometry::projection_factor(dot, square_b, static_cast<const typename Narrow<T>::type*>(nullptr));
  double square = 0, along = 0;
  over_columns(a, b, depth, [&](double value, double base) {
    const double residual = fma(-factor, base, value);
    square = fma(residual, residual, square);
    along = fma(residual, base, along);
  });
  return geometry::half_square_from_residual(warp_sum(square), warp_sum(along), square_a, square_b);
}

}  // namespace cuda
}  // namespace geowidth
