// One visit of a block's rows of the kernel: u = a / (K v) row by row, and the block's share of the column sums K' u.
//
// A thread owns the same columns of every row, in pieces of 16 bytes; a group of rows stays in registers between its
// row sums and its column sums, so each entry is read once. Threads meet once a group, to add up the row sums.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "warp.h"

namespace geowidth {
namespace cuda {

// Few threads with many registers each: a group and the next stay in them (64 floats each), and what every thread must
// hold besides, and every warp's share of the row sums' shuffles, are paid for only 8 times a multiprocessor.
constexpr int most_threads = 256, most_warps = most_threads / warp_size;
constexpr int most_group = 8;  // rows of a group

template <typename T>
struct Limits;

template <>
struct Limits<float> {
  static constexpr float small = FLT_MIN * 1e8f, large = FLT_MAX * 1e-8f;  // between them u is usable
  static constexpr double range = 16;      // potentials that miss the right ones by more leave the safe range of v
  static constexpr float highest = 87.0f;  // exponents are cut here, below overflow
  static constexpr float least = -1e30f;
};

template <>
struct Limits<double> {
  static constexpr double small = DBL_MIN * 1e8, large = DBL_MAX * 1e-8;
  static constexpr double range = 150;
  static constexpr double highest = 708.0;
  static constexpr double least = -1e300;
};

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

__device__ __forceinline__ int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

__device__ __forceinline__ float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
__device__ __forceinline__ double multiply_add(double x, double y, double z) { return fma(x, y, z); }

// exp(scale (x + r s) + f + g), cut below overflow. Roundings are spelled out: every use gives the same bits.
template <typename T>
__device__ __forceinline__ T kernel_entry(T x, T scale, T r, T s, T f, T g) {
  const T e = multiply_add(x, scale, multiply_add(scale * r, s, g + f));
  return exponential(e < Limits<T>::highest ? e : Limits<T>::highest);
}

// Neighbouring columns of a row.
template <typename T, int width>
struct alignas(width * sizeof(T)) Piece {
  T at[width];
};

// 16 bytes of a row.
template <typename T>
struct Pack : Piece<T, 16 / sizeof(T)> {
  static constexpr int width = 16 / sizeof(T);
};

template <typename T>
__device__ __forceinline__ Pack<T> no_pack() {
  Pack<T> pack;
#pragma unroll
  for (int w = 0; w < Pack<T>::width; ++w) pack.at[w] = 0;
  return pack;
}

// Past the first-level cache: what other blocks wrote, or what is read once a visit.
__device__ __forceinline__ Pack<float> load_far(const float* p) {
  const float4 q = __ldcg(reinterpret_cast<const float4*>(p));
  return {{q.x, q.y, q.z, q.w}};
}
__device__ __forceinline__ Pack<double> load_far(const double* p) {
  const double2 q = __ldcg(reinterpret_cast<const double2*>(p));
  return {{q.x, q.y}};
}

template <typename T>
__device__ __forceinline__ Pack<T> load_near(const T* p) {
  return *reinterpret_cast<const Pack<T>*>(p);
}

template <typename T>
__device__ __forceinline__ T dot(const Pack<T>& x, const Pack<T>& y, T sum) {
#pragma unroll
  for (int w = 0; w < Pack<T>::width; ++w) sum += x.at[w] * y.at[w];
  return sum;
}

template <typename T>
__device__ __forceinline__ void add_multiple(Pack<T>& sum, const Pack<T>& x, T factor) {
#pragma unroll
  for (int w = 0; w < Pack<T>::width; ++w) sum.at[w] += x.at[w] * factor;
}

// Sums over the block, one for each of a group's rows; lane l gets that of row l / (32 / group). The first exchanges
// halve the number of values a lane holds: 6 shuffles for 4 sums over a warp instead of 20. slots: (group, most_warps).
template <typename T, int group>
__device__ __forceinline__ T row_totals(T (&sum)[group], T* slots) {
  constexpr int group_lanes = warp_size / group;
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
  int apart = warp_size / 2;
#pragma unroll
  for (int count = group; count > 1; count /= 2, apart /= 2) {
    const bool upper = lane & apart;
#pragma unroll
    for (int h = 0; h < count / 2; ++h) {
      const T kept = upper ? sum[h + count / 2] : sum[h], given = upper ? sum[h] : sum[h + count / 2];
      sum[h] = kept + __shfl_xor_sync(whole_warp, given, apart);
    }
  }
  sum[0] = over_lanes<group_lanes>(sum[0], Sum());
  T* row = slots + lane / group_lanes * most_warps;
  if (lane % group_lanes == 0) row[warp] = sum[0];
  __syncthreads();
  T total = 0;
  for (int w = lane % group_lanes; w < warps; w += group_lanes) total += row[w];
  return over_lanes<group_lanes>(total, Sum());
}

// A block's rows: the first `resident` in shared memory, the rest in device memory, both with row stride `stride`.
template <typename T>
struct Slab {
  int rows, resident, stride;
  T* near;
  T* far;      // of the first row, resident or not
  const T* a;  // of the block's rows
  T* u;

  __device__ __forceinline__ T* row(int i) const {
    return (i < resident ? near : far) + static_cast<int64_t>(i) * stride;
  }
};

// u of the group's rows from their sums; false if one is out of range. Rows past the slab get 0.
template <typename T, int group>
__device__ __forceinline__ bool group_weights(const Slab<T>& slab, int first, T (&sum)[group], T* slots,
                                              T (&u)[group]) {
  constexpr int group_lanes = warp_size / group;
  const int lane = threadIdx.x % warp_size;
  const int i = first + lane / group_lanes;
  const T a = i < slab.rows ? slab.a[i] : 0;
  const T total = row_totals(sum, slots);
  const T mine = i < slab.rows ? a / total : 0;
  if (threadIdx.x < warp_size && lane % group_lanes == 0 && i < slab.rows) slab.u[i] = mine;
#pragma unroll
  for (int r = 0; r < group; ++r) u[r] = __shfl_sync(whole_warp, mine, r * group_lanes);
  return i >= slab.rows || (mine > Limits<T>::small && mine < Limits<T>::large);
}

// The visit for rows of at most packs * blockDim.x pieces. Groups are fetched one ahead, and from the other end at
// every second visit: what the second-level cache still holds of the rows in device memory is met first. partial:
// (stride) column sums of the block. slots: 2 x (group, most_warps). Returns false if a u of a row that this lane holds
// is out of range.
template <typename T, int packs, int group>
__device__ __forceinline__ bool visit_once(const Slab<T>& slab, const T* v, T* partial, T* slots, bool backward) {
  constexpr int width = Pack<T>::width;
  using Group = Pack<T>[group][packs];
  const int pieces = slab.stride / width;
  Pack<T> weight[packs], column[packs];
  bool good = true;
  // The resident rows make whole groups, unless they are all there are.
  const int groups = (slab.rows + group - 1) / group;
  const auto fetch = [&](Group& entry, int k) {
    if (k >= groups) return;
    const int first = (backward ? groups - 1 - k : k) * group;
    const bool near = first < slab.resident;
#pragma unroll
    for (int r = 0; r < group; ++r) {
      const int i = first + r < slab.rows ? first + r : slab.rows - 1;
#pragma unroll
      for (int c = 0; c < packs; ++c) {
        const int p = threadIdx.x + c * blockDim.x;
        if (p >= pieces)
          entry[r][c] = no_pack<T>();
        else if (near)
          entry[r][c] = load_near(slab.near + i * slab.stride + p * width);
        else
          entry[r][c] = load_far(slab.far + static_cast<int64_t>(i) * slab.stride + p * width);
      }
    }
  };
  const auto work = [&](const Group& entry, int k) {
    if (k >= groups) return;
    const int first = (backward ? groups - 1 - k : k) * group;
    T sum[group], u[group];
#pragma unroll
    for (int r = 0; r < group; ++r) {
      sum[r] = 0;
#pragma unroll
      for (int c = 0; c < packs; ++c) sum[r] = dot(entry[r][c], weight[c], sum[r]);
    }
    good = group_weights(slab, first, sum, slots + k % 2 * group * most_warps, u) && good;
#pragma unroll
    for (int r = 0; r < group; ++r)
#pragma unroll
      for (int c = 0; c < packs; ++c) add_multiple(column[c], entry[r][c], u[r]);
  };

  Group even, odd;
  fetch(even, 0);
#pragma unroll
  for (int c = 0; c < packs; ++c) {
    const int p = threadIdx.x + c * blockDim.x;
    weight[c] = p < pieces ? load_far(v + p * width) : no_pack<T>();
    column[c] = no_pack<T>();
  }
  for (int k = 0; k < groups; k += 2) {
    fetch(odd, k + 1);
    work(even, k);
    fetch(even, k + 2);
    work(odd, k + 1);
  }
#pragma unroll
  for (int c = 0; c < packs; ++c) {
    const int p = threadIdx.x + c * blockDim.x;
    if (p < pieces) *reinterpret_cast<Pack<T>*>(partial + p * width) = column[c];
  }
  return good;
}

// The same for rows of any width: entries are read twice, for the row sums and for the column sums.
template <typename T, int group>
__device__ __forceinline__ bool visit_twice(const Slab<T>& slab, const T* v, T* partial, T* slots) {
  constexpr int width = Pack<T>::width;
  const int pieces = slab.stride / width;
  bool good = true;
  int turn = 0;
  for (int first = 0; first < slab.rows; first += group) {
    const T* row[group];
    T sum[group] = {}, u[group];
#pragma unroll
    for (int r = 0; r < group; ++r) row[r] = slab.row(first + r < slab.rows ? first + r : slab.rows - 1);
    for (int p = threadIdx.x; p < pieces; p += blockDim.x) {
      const Pack<T> weight = load_far(v + p * width);
#pragma unroll
      for (int r = 0; r < group; ++r) sum[r] = dot(load_near(row[r] + p * width), weight, sum[r]);
    }
    good = group_weights(slab, first, sum, slots + turn * group * most_warps, u) && good;
    turn ^= 1;
  }
  __syncthreads();
  for (int p = threadIdx.x; p < pieces; p += blockDim.x) {
    Pack<T> column = no_pack<T>();
#pragma unroll 4
    for (int i = 0; i < slab.rows; ++i) add_multiple(column, load_near(slab.row(i) + p * width), slab.u[i]);
    *reinterpret_cast<Pack<T>*>(partial + p * width) = column;
  }
  return good;
}

}  // namespace cuda
}  // namespace geowidth
