// The coupling that a Sinkhorn solve left, with the sums taken over it, and inner products: one visit of device memory.
//
// plan_ij = u_i K_ij v_j with K formed anew from x by the expression the solve used, hence of the same bits: what the
// solve kept in shared memory is gone, and x is needed for <x, plan> anyway. 12 bytes an entry in float32: x and the
// old plan in, the plan out; 48 us at n = m = 4,096 on 4.2 TB/s. The square loss' constant terms need no pass of their
// own: they are in r, s and the potentials, and the factor 4 / eps is the log-kernel's scale.
#include <algorithm>

#include "device.h"
#include "launch.h"
#include "sinkhorn_work.h"

namespace geowidth {
namespace cuda {
namespace {

constexpr int plan_threads = 256, plan_warps = plan_threads / warp_size;
constexpr int strip = 8;    // rows of a tile; a thread adds up its share of one in T, then in double
constexpr int at_once = 4;  // rows fetched before the first is written: plan may be old, so no compiler would

// The block's sum. room: (plan_warps) doubles of shared memory.
__device__ __forceinline__ double block_sum(double x, double* room) {
  return over_block<plan_warps>(x, threadIdx.x % warp_size, threadIdx.x / warp_size, room, Sum());
}

// One 16-byte store of a piece: assigned as a struct, the compiler for sm_80 and sm_90 stores its fields one by one.
__device__ __forceinline__ void store(float* to, const Piece<float, 4>& piece) {
  __stcg(reinterpret_cast<float4*>(to), make_float4(piece.at[0], piece.at[1], piece.at[2], piece.at[3]));
}
__device__ __forceinline__ void store(double* to, const Piece<double, 2>& piece) {
  __stcg(reinterpret_cast<double2*>(to), make_double2(piece.at[0], piece.at[1]));
}
template <typename T>
__device__ __forceinline__ void store(T* to, const Piece<T, 1>& piece) {
  *to = piece.at[0];
}

// Tiles of `strip` rows by plan_threads pieces of `width` columns, dealt to the blocks in turn.
template <typename T, int width>
__global__ void __launch_bounds__(plan_threads) form_plan(Work<T> w, const T* old, T* plan) {
  using Columns = Piece<T, width>;
  const int64_t pieces = (w.m + width - 1) / width, across = (pieces + plan_threads - 1) / plan_threads;
  const int64_t tiles = across * ((w.n + strip - 1) / strip);
  double change = 0, inner = 0, linear = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t j = (tile % across * plan_threads + threadIdx.x) * width;
    if (j >= w.m) continue;
    const int64_t begin = tile / across * strip;
    T s[width], g[width], v[width], part[3] = {};
#pragma unroll
    for (int c = 0; c < width; ++c) {
      s[c] = w.s[j + c];
      g[c] = w.formed_g[j + c];
      v[c] = w.v[j + c];
    }
    for (int64_t i = begin; i < smaller(w.n, begin + strip); i += at_once) {
      Columns x[at_once], before[at_once];
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const int64_t from = smaller(i + k, w.n - 1) * w.m + j;
        x[k] = *reinterpret_cast<const Columns*>(w.x + from);
        before[k] = *reinterpret_cast<const Columns*>(old + from);
      }
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        if (i + k >= w.n) continue;
        const T r = w.r[i + k], f = w.formed_f[i + k], u = w.u[i + k];
        Columns now;
        T weighed = 0;
#pragma unroll
        for (int c = 0; c < width; ++c) {
          const T p = kernel_entry(x[k].at[c], w.scale, r, s[c], f, g[c]) * v[c] * u;
          const T difference = p - before[k].at[c];
          part[0] += difference < 0 ? -difference : difference;
          part[1] += p * x[k].at[c];
          weighed += p * s[c];
          now.at[c] = p;
        }
        part[2] += r * weighed;
        store(plan + (i + k) * w.m + j, now);
      }
    }
    change += part[0];
    linear += part[2];
    inner += part[1];
  }
  double* room = reinterpret_cast<double*>(dynamic_shared());
  const double sums[3] = {change, linear, inner};
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    const double sum = block_sum(sums[q], room);
    if (threadIdx.x == 0) w.plan_partial[q * plan_blocks + blockIdx.x] = sum;
  }
}

// outcome[4..7], from what form_plan's blocks left and the potentials. One block.
template <typename T>
__global__ void __launch_bounds__(plan_threads) add_plan(Work<T> w, int blocks) {
  double* room = reinterpret_cast<double*>(dynamic_shared());
  for (int q = 0; q < 3; ++q) {
    double sum = 0;
    for (int b = threadIdx.x; b < blocks; b += plan_threads) sum += w.plan_partial[q * plan_blocks + b];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) w.outcome[4 + q] = sum;
  }
  double sum = 0;
  for (int64_t i = threadIdx.x; i < w.n; i += plan_threads) sum += static_cast<double>(w.f[i]) * w.a[i];
  for (int64_t j = threadIdx.x; j < w.m; j += plan_threads) sum += static_cast<double>(w.g[j]) * w.b[j];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) w.outcome[7] = sum;
}

// Short sums in T, added up in double. Pieces are dealt to the threads of the grid in turn.
template <typename T, int width>
__global__ void __launch_bounds__(plan_threads) multiply(const T* x, const T* y, int64_t pieces, double* partial) {
  constexpr int together = 4;
  using Columns = Piece<T, width>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * plan_threads;
  double whole = 0;
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * plan_threads + threadIdx.x; p < pieces; p += together * step) {
    T part = 0;
#pragma unroll
    for (int k = 0; k < together; ++k) {
      const int64_t q = p + k * step;
      if (q >= pieces) continue;
      const Columns one = reinterpret_cast<const Columns*>(x)[q], other = reinterpret_cast<const Columns*>(y)[q];
#pragma unroll
      for (int c = 0; c < width; ++c) part += one.at[c] * other.at[c];
    }
    whole += part;
  }
  const double sum = block_sum(whole, reinterpret_cast<double*>(dynamic_shared()));
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(plan_threads) add_products(const double* partial, int blocks, double* out) {
  double sum = 0;
  for (int b = threadIdx.x; b < blocks; b += plan_threads) sum += partial[b];
  sum = block_sum(sum, reinterpret_cast<double*>(dynamic_shared()));
  if (threadIdx.x == 0) *out = sum;
}

constexpr size_t room_bytes = plan_warps * sizeof(double);

bool aligned(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(), [](const void* p) { return at_16_bytes(p); });
}

}  // namespace

template <typename T>
void sinkhorn_plan(const SinkhornArguments<T>& arguments, const T* old, T* plan, int64_t resident,
                   cudaStream_t stream) {
  const Work<T> w = work_of(arguments, sinkhorn_shape<T>(arguments.n, arguments.m, resident));
  constexpr int width = Pack<T>::width;
  const bool wide = w.m % width == 0 && aligned({w.x, old, plan});
  const int64_t across = ceil_div(ceil_div(w.m, wide ? width : 1), plan_threads);
  const int64_t blocks = std::min<int64_t>(plan_blocks, across * ceil_div(w.n, strip));
  const Launch how{dim3(static_cast<unsigned>(blocks)), dim3(plan_threads), room_bytes};
  launch(wide ? &form_plan<T, width> : &form_plan<T, 1>, how, stream, w, old, plan);
  launch(&add_plan<T>, {dim3(1), dim3(plan_threads), room_bytes}, stream, w, static_cast<int>(blocks));
}

template <typename T>
void inner_product(const T* x, const T* y, int64_t count, double* scratch, double* out, cudaStream_t stream) {
  constexpr int width = Pack<T>::width;
  const bool wide = count % width == 0 && aligned({x, y});
  const int64_t pieces = wide ? count / width : count;
  const int64_t blocks = std::max<int64_t>(1, std::min(inner_product_scratch, ceil_div(pieces, plan_threads)));
  const Launch how{dim3(static_cast<unsigned>(blocks)), dim3(plan_threads), room_bytes};
  launch(wide ? &multiply<T, width> : &multiply<T, 1>, how, stream, x, y, pieces, scratch);
  launch(&add_products, {dim3(1), dim3(plan_threads), room_bytes}, stream, scratch, static_cast<int>(blocks), out);
}

template void sinkhorn_plan<float>(const SinkhornArguments<float>&, const float*, float*, int64_t, cudaStream_t);
template void sinkhorn_plan<double>(const SinkhornArguments<double>&, const double*, double*, int64_t, cudaStream_t);
template void inner_product<float>(const float*, const float*, int64_t, double*, double*, cudaStream_t);
template void inner_product<double>(const double*, const double*, int64_t, double*, double*, cudaStream_t);

}  // namespace cuda
}  // namespace geowidth
