// Kernels of gromov.h. A warp takes a row: lane l reads groups of 16 bytes, l, l + 32, ... of it, and the lanes' sums
// are added as a tree, so that sums depend on the row alone. What is symmetric is read by pairs of tiles.
#include "gromov.h"

#include "device.h"
#include "launch.h"
#include "warp.h"

namespace geowidth {
namespace cuda {
namespace {

constexpr int rows_a_block = 8, block_threads = warp_size * rows_a_block;
constexpr int tile = 32, padded = tile + 1;
constexpr double infinity = __builtin_huge_val();

// ---- reading rows

template <typename T>
struct Group;
template <>
struct Group<float> {
  static constexpr int size = 4;
  __device__ static void load(const float* p, float* x) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  }
};
template <>
struct Group<double> {
  static constexpr int size = 2;
  __device__ static void load(const double* p, double* x) {
    const double2 v = *reinterpret_cast<const double2*>(p);
    x[0] = v.x, x[1] = v.y;
  }
};

template <bool aligned, typename T>
__device__ __forceinline__ void load_group(const T* p, T* x) {
  if (aligned) {
    Group<T>::load(p, x);
  } else {
#pragma unroll
    for (int l = 0; l < Group<T>::size; ++l) x[l] = p[l];
  }
}

// body(k, c_k) for this lane's share of a row of n.
template <bool aligned, typename T, typename Body>
__device__ __forceinline__ void for_row(const T* row, int64_t n, Body body) {
  constexpr int size = Group<T>::size;
  int64_t k = static_cast<int64_t>(threadIdx.x) * size;
#pragma unroll 2
  for (; k + size <= n; k += warp_size * size) {
    T x[size];
    load_group<aligned>(row + k, x);
#pragma unroll
    for (int l = 0; l < size; ++l) body(k + l, x[l]);
  }
  for (int64_t end = k + size; k < n && k < end; ++k) body(k, row[k]);
}

__device__ __forceinline__ int64_t own_row() { return static_cast<int64_t>(blockIdx.x) * rows_a_block + threadIdx.y; }

// ---- reductions by a block of (32, rows_a_block) threads; `shared` holds rows_a_block doubles

template <typename Join>
__device__ __forceinline__ double over_rows(double x, double* shared, Join join) {
  return over_block<rows_a_block>(x, threadIdx.x, threadIdx.y, shared, join);
}

// Join of x[0] ... x[n - 1] by one block.
template <typename Join>
__device__ double over_array(const double* x, int64_t n, double* shared, Join join) {
  double mine = Join::start;
  for (int64_t k = threadIdx.y * warp_size + threadIdx.x; k < n; k += block_threads) mine = join(mine, x[k]);
  return over_rows(mine, shared, join);
}

// out[b] = the join of x[b * n] ... : one block an array.
template <typename Join>
__global__ void __launch_bounds__(block_threads) fold(const double* x, int64_t n, double* out) {
  double* shared = reinterpret_cast<double*>(dynamic_shared());
  const double all = over_array(x + blockIdx.x * n, n, shared, Join());
  if (threadIdx.x == 0 && threadIdx.y == 0) out[blockIdx.x] = all;
}

// ---- pairs of tiles

// Tiles (s, t), s <= t, numbered t (t + 1) / 2 + s.
__device__ __forceinline__ void tile_pair(int64_t number, int64_t& s, int64_t& t) {
  t = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(number) + 1.0) - 1.0) / 2);
  while (t * (t + 1) / 2 > number) --t;
  while ((t + 1) * (t + 2) / 2 <= number) ++t;
  s = number - t * (t + 1) / 2;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    symmetry_tiles(const T* c, int64_t stride, int64_t n, int64_t pairs, double* partial) {
  T* mirror = reinterpret_cast<T*>(dynamic_shared());
  double* shared = reinterpret_cast<double*>(mirror + tile * padded);
  double largest = 0, worst = 0;
  for (int64_t number = blockIdx.x; number < pairs; number += gridDim.x) {
    int64_t s, t;
    tile_pair(number, s, t);
    __syncthreads();
    for (int r = threadIdx.y; r < tile; r += rows_a_block) {
      const int64_t i = t * tile + r, j = s * tile + threadIdx.x;
      mirror[r * padded + threadIdx.x] = i < n && j < n ? c[i * stride + j] : T(0);
    }
    __syncthreads();
    for (int r = threadIdx.y; r < tile; r += rows_a_block) {
      const int64_t i = s * tile + r, j = t * tile + threadIdx.x;
      if (i >= n || j >= n) continue;
      const double here = c[i * stride + j], there = mirror[threadIdx.x * padded + r];
      const bool finite = here * 0 == 0 && there * 0 == 0;
      const double size = finite ? fmax(fabs(here), fabs(there)) : infinity;
      largest = fmax(largest, size);
      if (finite) worst = fmax(worst, fabs(here - there));
    }
  }
  largest = over_rows(largest, shared, Largest());
  worst = over_rows(worst, shared, Largest());
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    partial[blockIdx.x] = largest;
    partial[gridDim.x + blockIdx.x] = worst;
  }
}

__global__ void __launch_bounds__(block_threads)
    exchange_tiles(const double* d1, const double* d2, const double* cost, const int64_t* column, const double* own,
                   const double* square1, const double* square2, int64_t n, int64_t pairs, double* partial) {
  double* mirror = reinterpret_cast<double*>(dynamic_shared());  // [j][i]: cost_j,column(i)
  double* shared = mirror + tile * padded;
  const double linear = 4.0 / n, square = 2.0 / (static_cast<double>(n) * n);
  double best = -infinity;
  for (int64_t number = blockIdx.x; number < pairs; number += gridDim.x) {
    int64_t s, t;
    tile_pair(number, s, t);
    __syncthreads();
    for (int r = threadIdx.y; r < tile; r += rows_a_block) {
      const int64_t j = t * tile + r, i = s * tile + threadIdx.x;
      mirror[r * padded + threadIdx.x] = i < n && j < n ? cost[j * n + column[i]] : 0;
    }
    __syncthreads();
    for (int r = threadIdx.y; r < tile; r += rows_a_block) {
      const int64_t i = s * tile + r, j = t * tile + threadIdx.x;
      if (j >= n || i >= j) continue;
      const int64_t p = column[i], q = column[j];
      const double slope = own[i] - cost[i * n + q] - mirror[threadIdx.x * padded + r] + own[j];
      const double a = square1[i] + square1[j] - 2 * d1[i * n + j];
      const double b = square2[i] + square2[j] - 2 * d2[p * n + q];
      best = fmax(best, linear * slope + square * a * b);
    }
  }
  best = over_rows(best, shared, Largest());
  if (threadIdx.x == 0 && threadIdx.y == 0) partial[blockIdx.x] = best;
}

// ---- centring

template <typename T, bool aligned>
__global__ void __launch_bounds__(block_threads)
    row_facts(const T* c, int64_t stride, int64_t n, double* means, double* squares, double* least, double* diagonal) {
  const int64_t i = own_row();
  if (i >= n) return;
  double sum = 0, square = 0, low = infinity;
  for_row<aligned>(c + i * stride, n, [&](int64_t, T x) {
    const double wide = x;
    sum += wide;
    square += wide * wide;
    low = fmin(low, wide);
  });
  sum = over_lanes(sum, Sum());
  square = over_lanes(square, Sum());
  low = over_lanes(low, Least());
  if (threadIdx.x != 0) return;
  means[i] = sum / n;
  squares[i] = square;
  least[i] = low;
  diagonal[i] = fabs(static_cast<double>(c[i * stride + i]));
}

// One block: the grand mean and the centred means from the row means.
__global__ void __launch_bounds__(block_threads)
    mean_facts(int64_t n, const double* means, const double* least, const double* diagonal, double* centred_means,
               double* out) {
  double* shared = reinterpret_cast<double*>(dynamic_shared());
  const double grand = over_array(means, n, shared, Sum()) / n;
  double square = 0;
  for (int64_t k = threadIdx.y * warp_size + threadIdx.x; k < n; k += block_threads) {
    const double m = means[k] - grand;
    centred_means[k] = m;
    square += m * m;
  }
  square = over_rows(square, shared, Sum());
  const double low = over_array(least, n, shared, Least());
  const double far = over_array(diagonal, n, shared, Largest());
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  out[0] = grand;
  out[1] = square;
  out[3] = low;
  out[4] = far;
}

template <typename T, bool aligned>
__global__ void __launch_bounds__(block_threads) centre_rows(const T* c, int64_t stride, int64_t n, const double* means,
                                                             const double* centred_means, double* d, double* squares) {
  constexpr int size = Group<T>::size;
  const int64_t i = own_row();
  if (i >= n) return;
  const T* row = c + i * stride;
  double* out = d + i * n;
  const double mean = means[i];
  double square = 0;
  int64_t k = static_cast<int64_t>(threadIdx.x) * size;
#pragma unroll 2
  for (; k + size <= n; k += warp_size * size) {
    T x[size];
    load_group<aligned>(row + k, x);
    double y[size];
#pragma unroll
    for (int l = 0; l < size; ++l) {
      y[l] = (x[l] - mean) - __ldg(centred_means + k + l);
      square += y[l] * y[l];
    }
    if (n % 2 == 0) {  // then rows of d start at multiples of 16 bytes
#pragma unroll
      for (int l = 0; l < size; l += 2) *reinterpret_cast<double2*>(out + k + l) = make_double2(y[l], y[l + 1]);
    } else {
#pragma unroll
      for (int l = 0; l < size; ++l) out[k + l] = y[l];
    }
  }
  for (int64_t end = k + size; k < n && k < end; ++k) {
    const double y = (row[k] - mean) - centred_means[k];
    out[k] = y;
    square += y * y;
  }
  square = over_lanes(square, Sum());
  if (threadIdx.x == 0) squares[i] = square;
}

// ---- matched pairs

template <typename T, bool aligned, bool permuted>
__global__ void __launch_bounds__(block_threads)
    difference_rows(const T* a, int64_t stride_a, const T* b, int64_t stride_b, const int64_t* row,
                    const int64_t* column, int64_t n, double* sums) {
  constexpr int size = Group<T>::size;
  const int64_t i = own_row();
  if (i >= n) return;
  const T* left = a + i * stride_a;
  const T* right = b + (row ? row[i] : i) * stride_b;
  double sum = 0;
  if (permuted) {
    for_row<aligned>(left, n, [&](int64_t k, T x) {
      const double difference = static_cast<double>(x) - static_cast<double>(__ldg(right + __ldg(column + k)));
      sum += difference * difference;
    });
  } else {
    int64_t k = static_cast<int64_t>(threadIdx.x) * size;
#pragma unroll 4
    for (; k + size <= n; k += warp_size * size) {
      T x[size], y[size];
      load_group<aligned>(left + k, x);
      load_group<aligned>(right + k, y);
#pragma unroll
      for (int l = 0; l < size; ++l) {
        const double difference = static_cast<double>(x[l]) - static_cast<double>(y[l]);
        sum += difference * difference;
      }
    }
    for (int64_t end = k + size; k < n && k < end; ++k) {
      const double difference = static_cast<double>(left[k]) - static_cast<double>(right[k]);
      sum += difference * difference;
    }
  }
  sum = over_lanes(sum, Sum());
  if (threadIdx.x == 0) sums[i] = sum;
}

// ---- certificate of an assignment

// One block: own costs, duals that are half of them, and what counts as rounding.
__global__ void __launch_bounds__(block_threads)
    certificate_begin(const double* cost, int64_t stride, int64_t n, const int64_t* home, double* own, double* u,
                      double* v, unsigned* lowered, double* out) {
  double* shared = reinterpret_cast<double*>(dynamic_shared());
  const int thread = threadIdx.y * warp_size + threadIdx.x;
  double scale = 0;
  for (int64_t i = thread; i < n; i += block_threads) {
    const double x = cost[i * stride + home[i]];
    own[i] = x;
    u[i] = v[home[i]] = x / 2;
    scale = fmax(scale, fabs(x));
  }
  scale = over_rows(scale, shared, Largest());
  if (thread < most_sweeps) lowered[thread] = 0;
  if (thread == 0) out[0] = 4 * 2.220446049250313e-16 * scale;
}

template <bool aligned>
__global__ void __launch_bounds__(block_threads)
    certificate_sweep(const double* cost, int64_t stride, int64_t n, const int64_t* home, const double* own, double* u,
                      const double* v, double* next_v, double* row_minima, unsigned* lowered, int sweep,
                      const double* slack) {
  if (sweep > 0 && lowered[sweep - 1] == 0) return;
  const int64_t i = own_row();
  if (i >= n) return;
  double least = infinity;
  for_row<aligned>(cost + i * stride, n, [&](int64_t j, double x) { least = fmin(least, x - __ldg(v + j)); });
  least = over_lanes(least, Least());
  if (threadIdx.x != 0) return;
  row_minima[i] = least;
  const bool lower = least < u[i] - *slack;
  if (lower) {
    u[i] = least;
    atomicAdd(lowered + sweep, 1u);
  }
  next_v[home[i]] = lower ? own[i] - least : v[home[i]];
}

// One block.
__global__ void __launch_bounds__(block_threads)
    certificate_end(int64_t n, const double* own, const double* v, const double* row_minima, const unsigned* lowered,
                    double* out) {
  double* shared = reinterpret_cast<double*>(dynamic_shared());
  int sweep = 0;
  while (sweep < most_sweeps && lowered[sweep] != 0) ++sweep;
  const bool found = sweep < most_sweeps;
  const double total = over_array(own, n, shared, Sum());
  // The sums are formed either way: every thread must pass the barriers inside.
  const double low = over_array(row_minima, n, shared, Sum());
  const double high = over_array(v + (sweep % 2) * n, n, shared, Sum());
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  out[0] = found ? sweep : -1;
  out[1] = total;
  out[2] = found ? low + high : -infinity;
}

// ---- launching

constexpr size_t fold_bytes = rows_a_block * sizeof(double);
const dim3 block(warp_size, rows_a_block);

dim3 row_grid(int64_t n) { return dim3(static_cast<unsigned>(ceil_div(n, rows_a_block))); }

int64_t tile_pairs(int64_t n) {
  const int64_t tiles = ceil_div(n, tile);
  return tiles * (tiles + 1) / 2;
}

unsigned tile_blocks(int64_t n) {
  const int64_t pairs = tile_pairs(n);
  return static_cast<unsigned>(pairs < most_tile_blocks ? pairs : most_tile_blocks);
}

template <typename T>
bool rows_aligned(const T* p, int64_t stride) {
  return at_16_bytes(p) && stride * sizeof(T) % 16 == 0;
}

}  // namespace

template <typename T>
void symmetry(const T* c, int64_t stride, int64_t n, double* scratch, double* out, cudaStream_t stream) {
  const unsigned blocks = tile_blocks(n);
  launch(&symmetry_tiles<T>, {dim3(blocks), block, tile * padded * sizeof(T) + fold_bytes}, stream, c, stride, n,
         tile_pairs(n), scratch);
  launch(&fold<Largest>, {dim3(2), block, fold_bytes}, stream, scratch, static_cast<int64_t>(blocks), out);
}

template <typename T>
void centre(const T* c, int64_t stride, int64_t n, double* means, double* centred_means, double* squares, double* d,
            double* scratch, double* out, cudaStream_t stream) {
  const bool aligned = rows_aligned(c, stride);
  double *least = scratch, *diagonal = scratch + n, *spread = scratch + 2 * n;
  launch(aligned ? &row_facts<T, true> : &row_facts<T, false>, {row_grid(n), block}, stream, c, stride, n, means,
         squares, least, diagonal);
  launch(&mean_facts, {dim3(1), block, fold_bytes}, stream, n, means, least, diagonal, centred_means, out);
  launch(aligned ? &centre_rows<T, true> : &centre_rows<T, false>, {row_grid(n), block}, stream, c, stride, n, means,
         centred_means, d, spread);
  launch(&fold<Sum>, {dim3(1), block, fold_bytes}, stream, spread, n, out + 2);
}

template <typename T>
void square_difference(const T* a, int64_t stride_a, const T* b, int64_t stride_b, const int64_t* row,
                       const int64_t* column, int64_t n, double* scratch, double* out, cudaStream_t stream) {
  const bool aligned = rows_aligned(a, stride_a) && (column || rows_aligned(b, stride_b));
  auto* kernel = aligned ? &difference_rows<T, true, false> : &difference_rows<T, false, false>;
  if (column) kernel = aligned ? &difference_rows<T, true, true> : &difference_rows<T, false, true>;
  launch(kernel, {row_grid(n), block}, stream, a, stride_a, b, stride_b, row, column, n, scratch);
  launch(&fold<Sum>, {dim3(1), block, fold_bytes}, stream, scratch, n, out);
}

void certificate(const double* cost, int64_t stride, int64_t n, const int64_t* home, double* row_minima, double* v,
                 double* scratch, unsigned* lowered, double* out, cudaStream_t stream) {
  double *own = scratch, *u = scratch + n;
  auto* sweep_rows = rows_aligned(cost, stride) ? &certificate_sweep<true> : &certificate_sweep<false>;
  launch(&certificate_begin, {dim3(1), block, fold_bytes}, stream, cost, stride, n, home, own, u, v, lowered, out);
  for (int sweep = 0; sweep < most_sweeps; ++sweep)
    launch(sweep_rows, {row_grid(n), block}, stream, cost, stride, n, home, own, u, v + (sweep % 2) * n,
           v + (1 - sweep % 2) * n, row_minima, lowered, sweep, out);
  launch(&certificate_end, {dim3(1), block, fold_bytes}, stream, n, own, v, row_minima, lowered, out);
}

void best_exchange(const double* d1, const double* d2, const double* cost, const int64_t* column, const double* own,
                   const double* square1, const double* square2, int64_t n, double* scratch, double* out,
                   cudaStream_t stream) {
  const unsigned blocks = tile_blocks(n);
  launch(&exchange_tiles, {dim3(blocks), block, tile * padded * sizeof(double) + fold_bytes}, stream, d1, d2, cost,
         column, own, square1, square2, n, tile_pairs(n), scratch);
  launch(&fold<Largest>, {dim3(1), block, fold_bytes}, stream, scratch, static_cast<int64_t>(blocks), out);
}

template void symmetry<float>(const float*, int64_t, int64_t, double*, double*, cudaStream_t);
template void symmetry<double>(const double*, int64_t, int64_t, double*, double*, cudaStream_t);
template void centre<float>(const float*, int64_t, int64_t, double*, double*, double*, double*, double*, double*,
                            cudaStream_t);
template void centre<double>(const double*, int64_t, int64_t, double*, double*, double*, double*, double*, double*,
                             cudaStream_t);
template void square_difference<float>(const float*, int64_t, const float*, int64_t, const int64_t*, const int64_t*,
                                       int64_t, double*, double*, cudaStream_t);
template void square_difference<double>(const double*, int64_t, const double*, int64_t, const int64_t*, const int64_t*,
                                        int64_t, double*, double*, cudaStream_t);

}  // namespace cuda
}  // namespace geowidth
