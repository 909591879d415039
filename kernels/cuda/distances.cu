// Distances of three geometries from a float64 Gram matrix: one pass, one thread an entry.
#include "distances.h"

#include "geometry/hyperbolic.h"
#include "geometry/raw.h"
#include "geometry/rows.h"
#include "launch.h"

namespace geowidth {
namespace cuda {
namespace {

constexpr int block_columns = 32, block_rows = 8;
constexpr int64_t most_grid_rows = 65535;  // CUDA's limit of gridDim.y; rows beyond it are taken by striding

template <typename T>
__device__ void write_raw(const DistanceArguments<T>& a, int64_t i, int64_t j, double gram) {
  double square = geometry::raw_square(gram, a.square_x[i], a.square_y[j]);
  if (geometry::raw_is_near(square, a.square_x[i], a.square_y[j], a.near))
    square = geometry::direct_square(a.x + i * a.depth, a.y + j * a.depth, a.depth);
  a.out[0][i * a.m + j] = geometry::raw_distance(static_cast<T>(square));
}

template <typename T>
__device__ void write_angular(const DistanceArguments<T>& a, int64_t i, int64_t j, double gram) {
  const double inverse = (1.0 / geometry::square_root(a.square_x[i])) * (1.0 / geometry::square_root(a.square_y[j]));
  const double half = geometry::signed_half_square(gram * inverse);
  const bool opposite = geometry::is_negative(half);
  double kept = geometry::magnitude(half);
  if (geometry::angle_is_near(half, a.near))
    kept = geometry::direct_half_square(a.x + i * a.depth, a.y + j * a.depth, a.depth, a.square_x[i], a.square_y[j],
                                        gram);
  const T result = static_cast<T>(kept);
  if (a.out[1]) a.out[1][i * a.m + j] = geometry::spherical_distance(result, opposite);
  if (a.out[2]) a.out[2][i * a.m + j] = geometry::hyperbolic_distance(result, opposite, static_cast<T>(a.scale));
}

template <typename T>
__device__ void write_diagonal(const DistanceArguments<T>& a, int64_t i) {
  const T zero = static_cast<T>(a.square_x[i] - a.square_x[i]);  // NaN for a row that is not finite
  for (int g = 0; g < 3; ++g)
    if (a.out[g]) a.out[g][i * a.m + i] = zero;
}

template <typename T>
__global__ void epilogue(DistanceArguments<T> a) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * block_columns + threadIdx.x;
  if (j >= a.m) return;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * block_rows + threadIdx.y; i < a.n;
       i += static_cast<int64_t>(gridDim.y) * block_rows) {
    if (a.symmetric && i == j) {
      write_diagonal(a, i);
      continue;
    }
    // A library's Gram matrix need not be symmetric in its last bits: both twins read the upper one.
    const double gram = a.symmetric && i > j ? a.gram[j * a.m + i] : a.gram[i * a.m + j];
    if (a.out[0]) write_raw(a, i, j, gram);
    if (a.out[1] || a.out[2]) write_angular(a, i, j, gram);
  }
}

int64_t blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace

template <typename T>
void distance_epilogue(const DistanceArguments<T>& arguments, cudaStream_t stream) {
  if (arguments.n == 0 || arguments.m == 0) return;
  const int64_t grid_rows = blocks(arguments.n, block_rows);
  const dim3 grid(static_cast<unsigned>(blocks(arguments.m, block_columns)),
                  static_cast<unsigned>(grid_rows < most_grid_rows ? grid_rows : most_grid_rows));
  launch(&epilogue<T>, {grid, dim3(block_columns, block_rows)}, stream, arguments);
}

template void distance_epilogue<float>(const DistanceArguments<float>&, cudaStream_t);
template void distance_epilogue<double>(const DistanceArguments<double>&, cudaStream_t);

}  // namespace cuda
}  // namespace geowidth
