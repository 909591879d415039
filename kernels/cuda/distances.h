// Launch declarations of the distance kernels: torch-free, host code only. Everything lies in device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace geowidth {
namespace cuda {

// The rows of a cloud: T is double, float, __half or __nv_bfloat16.
template <typename T>
struct CloudArguments {
  const T* rows;  // (count, depth), contiguous
  int64_t count, depth;
  double* square;   // (count): |row|^2, summed in double
  double* inverse;  // (count): 1 / |row|
};

// What the host asks of a cloud, gathered while its rows are read. All zero before.
struct CloudFacts {
  int zero_row;     // 1 if some row is zero
  int extreme_row;  // 1 if some |row|^2 is neither 0 nor between the bounds given
  int near_pairs;   // of the sample
};

// Fills square and inverse, and the first two facts.
template <typename T>
void survey_rows(const CloudArguments<T>& cloud, double smallest, double largest, CloudFacts* facts,
                 cudaStream_t stream);

// Counts the pairs among `samples` seeded ones (row of x, row of y) that a Gram matrix with this `near` would leave to
// be computed again. Both clouds' squares and inverses have been filled. In a symmetric matrix no row is paired with
// itself.
template <typename T>
void survey_pairs(const CloudArguments<T>& x, const CloudArguments<T>& y, int samples, double near, bool raw,
                  bool angular, bool symmetric, CloudFacts* facts, cudaStream_t stream);

// Rows [row, end) of x against columns [column, m) of y, from a Gram matrix of type G to distances of type O.
template <typename T, typename G, typename O>
struct DistanceArguments {
  const G* gram;   // (end - row, m - column): x.y; 16-byte aligned
  int64_t stride;  // of its rows; a multiple of 4
  int64_t row, end, column;
  const T* x;              // (n, depth), contiguous
  const T* y;              // (m, depth); x itself if symmetric
  const double* square_x;  // (n): |x|^2
  const double* square_y;
  const double* inverse_x;  // (n): 1 / |x|
  const double* inverse_y;
  int64_t m, depth;
  O* out[3];       // (n, m) each, contiguous, for raw, spherical, hyperbolic; null where not wanted
  double scale;    // r / (1 - r^2)
  double near;     // share of the squared norms' sum under which a pair is computed again from the raw rows
  bool symmetric;  // y is x and column == row: entries from the diagonal up are computed and written to both triangles
};

// Enqueues the epilogue on `stream`. Throws std::runtime_error if CUDA refuses the launch.
template <typename T, typename G, typename O>
void distance_epilogue(const DistanceArguments<T, G, O>& arguments, cudaStream_t stream);

}  // namespace cuda
}  // namespace geowidth
