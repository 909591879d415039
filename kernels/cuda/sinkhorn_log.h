// Entering Sinkhorn's iterations from potentials that do not fit: half steps in the log domain, from x itself.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device.h"
#include "sinkhorn_work.h"

namespace geowidth {
namespace cuda {

// The columns a block adds up over all blocks.
struct Share {
  int64_t begin, end;
};

// A sum of exponentials, as its largest exponent and the sum relative to it.
template <typename T>
struct LogSum {
  T top = Limits<T>::least, sum = 0;

  __device__ void add(T exponent) {
    if (exponent > top) {
      sum = sum * exponential(top - exponent) + 1;
      top = exponent;
    } else {
      sum += exponential(exponent - top);
    }
  }

  __device__ void add(const LogSum& other) {
    const T highest = top > other.top ? top : other.top;
    sum = sum * exponential(top - highest) + other.sum * exponential(other.top - highest);
    top = highest;
  }
};

template <typename T>
__device__ __forceinline__ T finite_or_zero(T x) {
  return x - x == 0 ? x : 0;
}

// f_i = log a_i - log sum_j exp(entry_ij + g_j) in the block's rows, a warp a row.
template <typename T>
__device__ void log_rows(const Work<T>& w) {
  const int64_t first = blockIdx.x * w.rows, end = smaller(w.n, first + w.rows);
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
  for (int64_t i = first + warp; i < end; i += warps) {
    const T slope = w.scale * w.r[i];
    LogSum<T> sum;
    for (int64_t j = lane; j < w.m; j += warp_size)
      sum.add(w.x[i * w.m + j] * w.scale + (slope * w.s[j] + finite_or_zero(__ldcg(w.formed_g + j))));
    for (int apart = warp_size / 2; apart > 0; apart /= 2) {
      LogSum<T> other;
      other.top = __shfl_xor_sync(whole_warp, sum.top, apart);
      other.sum = __shfl_xor_sync(whole_warp, sum.sum, apart);
      sum.add(other);
    }
    if (lane == 0)
      w.formed_f[i] = static_cast<T>(log(static_cast<double>(w.a[i])) - sum.top - log(static_cast<double>(sum.sum)));
  }
  __syncthreads();
}

// The block's rows' share of log sum_i exp(entry_ij + f_i), in partial and top.
template <typename T>
__device__ void log_columns(const Work<T>& w) {
  const int64_t first = blockIdx.x * w.rows, end = smaller(w.n, first + w.rows);
  const int64_t at = blockIdx.x * w.stride;
  for (int64_t j = threadIdx.x; j < w.m; j += blockDim.x) {
    const T s = w.s[j];
    LogSum<T> sum;
    for (int64_t i = first; i < end; ++i) sum.add(w.x[i * w.m + j] * w.scale + (w.scale * w.r[i] * s + w.formed_f[i]));
    w.top[at + j] = sum.top;
    w.partial[at + j] = sum.sum;
  }
}

// g_j of the block's share of the columns.
template <typename T>
__device__ void add_log_columns(const Work<T>& w, const Share& share) {
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
    double highest = __ldcg(w.top + j), whole = 0;
    for (unsigned b = 1; b < gridDim.x; ++b)
      highest = fmax(highest, static_cast<double>(__ldcg(w.top + b * w.stride + j)));
    for (unsigned b = 0; b < gridDim.x; ++b)
      whole += __ldcg(w.partial + b * w.stride + j) * exp(__ldcg(w.top + b * w.stride + j) - highest);
    w.formed_g[j] = static_cast<T>(log(static_cast<double>(w.b[j])) - highest - log(whole));
  }
}

// Rows, then columns. The rows' second turn is due once all blocks can see g.
template <typename T>
__device__ void enter_by_log_domain(const Work<T>& w, const Share& share, unsigned& phase) {
  log_rows(w);
  log_columns(w);
  grid_barrier(w.arrived, phase);
  add_log_columns(w, share);
}

}  // namespace cuda
}  // namespace geowidth
