// What the lanes of a warp, and the warps of a block, do together.
#pragma once

#include <cuda_runtime.h>

namespace geowidth {
namespace cuda {

constexpr int warp_size = 32;
constexpr unsigned whole_warp = 0xffffffffu;

// Ways to join two numbers into one, with the number that changes nothing.
struct Sum {
  static constexpr double start = 0;
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Least {
  static constexpr double start = __builtin_huge_val();
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

struct Largest {
  static constexpr double start = -__builtin_huge_val();
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// The join over each run of `lanes` lanes, a power of two, as a tree: every lane gets the same bits.
template <int lanes = warp_size, typename T, typename Join>
__device__ __forceinline__ T over_lanes(T x, Join join) {
#pragma unroll
  for (int apart = lanes / 2; apart > 0; apart /= 2) x = join(x, __shfl_xor_sync(whole_warp, x, apart));
  return x;
}

__device__ __forceinline__ double warp_sum(double x) { return over_lanes(x, Sum()); }

// Over a block of `warps` warps, of which this thread is lane `lane` of warp `warp`: every thread gets the join.
// room: (warps) doubles of shared memory, free again when this returns.
template <int warps, typename Join>
__device__ double over_block(double x, int lane, int warp, double* room, Join join) {
  x = over_lanes(x, join);
  if (lane == 0) room[warp] = x;
  __syncthreads();
  double all = room[0];
  for (int w = 1; w < warps; ++w) all = join(all, room[w]);
  __syncthreads();
  return all;
}

}  // namespace cuda
}  // namespace geowidth
