// Launch declaration of the distance epilogue: torch-free, host code only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace geowidth {
namespace cuda {

// Everything lies in device memory. out[g] is (n, m), contiguous, for raw, spherical, hyperbolic; null where not
// wanted.
template <typename T>
struct DistanceArguments {
  const double* gram;      // (n, m): x.y
  const T* x;              // (n, depth), contiguous
  const T* y;              // (m, depth); x itself if symmetric
  const double* square_x;  // (n): |x|^2
  const double* square_y;  // (m)
  int64_t n, m, depth;
  T* out[3];
  double scale;    // r / (1 - r^2)
  double near;     // share of the squared norms' sum under which a pair is computed again from the raw rows
  bool symmetric;  // the diagonal is 0, and an entry under it is its mirror image's twin, bit for bit
};

// Enqueues the epilogue on `stream`. Throws std::runtime_error if CUDA refuses the launch.
template <typename T>
void distance_epilogue(const DistanceArguments<T>& arguments, cudaStream_t stream);

}  // namespace cuda
}  // namespace geowidth
