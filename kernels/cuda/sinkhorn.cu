// Sinkhorn's iterations of csrc/cpu/sinkhorn.cpp in one cooperative launch: no host decides anything in between.
//
// Block b owns a run of rows of the kernel K and keeps as many of them as fit in its shared memory; the rest are read
// from device memory at every visit. With 227 KB a block and one block on each of an H200's 132 multiprocessors float32
// kernels stay resident up to n = m = 2,732 (float64: 1,908); at 4,096 12 of a block's 32 rows do, and the other 42 MB
// fit the 50 MB second-level cache. Rows are read, not formed anew from x: the bytes are the same, forming them once
// costs one write per solve and saves an exponential (in double some 40 operations) per entry and visit.
//
// A visit: u = a / (K v) and the block's column sums (sinkhorn_visit.h); barrier; every block adds up its share of the
// columns over the blocks, in their order, and forms the products that Anderson's acceleration needs; barrier; every
// block reads the sums and takes the same decision (sinkhorn_state.h). A plain step's v was written before the second
// barrier; a mixed one takes a third. What one block writes and others read is read past the first-level cache.
//
// What an H200 should need for a visit, in us, by counting (float32; not measured): entries at 128 B a clock and
// multiprocessor from shared memory, 5.5 TB/s from the second-level cache, 4.2 TB/s from device memory, and, whatever
// the size, 3 barriers of 1.2 and 4 to 5 round trips of 0.5 between them:
//     n = m                      1,024           2,048           2,732            4,096            8,192
//     resident rows        0.4 + 6 = 6     1.6 + 6 = 8     2.6 + 6 = 9     9.0 + 6 = 15      60 + 6 = 66
//     streaming            0.8 + 6 = 7     3.1 + 6 = 9     5.4 + 6 = 11     16 + 6 = 22      64 + 6 = 70
// The barriers, not bytes, decide up to n = 3,000 or so; from 4,096 on the streaming visit takes 70 % and more of the
// rate of device memory.
#include "sinkhorn.h"

#include <algorithm>
#include <stdexcept>

#include "device.h"
#include "launch.h"
#include "sinkhorn_log.h"
#include "sinkhorn_state.h"
#include "sinkhorn_work.h"

namespace geowidth {
namespace cuda {
namespace {

// A block's shared memory; the resident rows follow, aligned like it.
template <typename T>
struct alignas(16) Shared {
  Control control;
  double totals[sums];
  double tiles[most_warps * warp_size];
  T slots[2 * most_group * most_warps];
};

// Cheap to form anew: keeping it in registers over a visit would cost more.
template <typename T>
__device__ __forceinline__ Slab<T> slab_of(const Work<T>& w) {
  const int64_t first = blockIdx.x * w.rows;
  const int rows = static_cast<int>(smaller(w.rows, w.n - first));
  return {rows,
          rows < w.resident ? rows : static_cast<int>(w.resident),
          static_cast<int>(w.stride),
          reinterpret_cast<T*>(dynamic_shared() + sizeof(Shared<T>)),
          w.kernel + first * w.stride,
          w.a + first,
          w.u + first};
}

template <typename T>
__device__ __forceinline__ Share share_of(const Work<T>& w) {
  return {smaller(w.m, blockIdx.x * w.share), smaller(w.m, (blockIdx.x + 1) * w.share)};
}

// Rows of the kernel from x and the potentials, `width` columns to a thread and `at_once` rows fetched together: 32 KB
// are on their way to a multiprocessor, more than latency times its share of the bandwidth.
template <typename T, int width, int at_once>
__device__ __forceinline__ void form_columns(const Work<T>& w) {
  using Columns = Piece<T, width>;
  const Slab<T> slab = slab_of(w);
  const int64_t first = blockIdx.x * w.rows;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * width; j < w.m; j += static_cast<int64_t>(blockDim.x) * width) {
    T s[width], g[width];
#pragma unroll
    for (int c = 0; c < width; ++c) {
      s[c] = w.s[j + c];
      g[c] = __ldcg(w.formed_g + j + c);
    }
    for (int i = 0; i < slab.rows; i += at_once) {
      Columns x[at_once];
#pragma unroll
      for (int k = 0; k < at_once; ++k)
        x[k] = *reinterpret_cast<const Columns*>(w.x + (first + smaller(i + k, slab.rows - 1)) * w.m + j);
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        if (i + k >= slab.rows) continue;
        const T r = w.r[first + i + k], f = w.formed_f[first + i + k];
        Columns entry;
#pragma unroll
        for (int c = 0; c < width; ++c) entry.at[c] = kernel_entry(x[k].at[c], w.scale, r, s[c], f, g[c]);
        *reinterpret_cast<Columns*>(slab.row(i + k) + j) = entry;
      }
    }
  }
}

// The columns of padding hold 0.
template <typename T>
__device__ void form_kernel(const Work<T>& w) {
  constexpr int width = Pack<T>::width;
  if (w.aligned) {
    form_columns<T, width, 8>(w);
  } else {
    form_columns<T, 1, 16>(w);
    const Slab<T> slab = slab_of(w);
    const int padding = static_cast<int>(w.stride - w.m);
    for (int i = threadIdx.x; i < slab.rows * padding; i += blockDim.x) slab.row(i / padding)[w.m + i % padding] = 0;
  }
  __syncthreads();
}

// log v = 0 in the block's share of the columns.
template <typename T>
__device__ void reset_columns(const Work<T>& w, int turn) {
  const Share share = share_of(w);
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
    w.log_v[j] = 0;
    w.turns[turn][j] = 1;
  }
}

template <typename T>
__device__ void absorb(const Work<T>& w) {
  const Slab<T> slab = slab_of(w);
  const Share share = share_of(w);
  const int64_t first = blockIdx.x * w.rows;
  for (int i = threadIdx.x; i < slab.rows; i += blockDim.x) w.formed_f[first + i] += logarithm(w.u[first + i]);
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x)
    w.formed_g[j] += static_cast<T>(w.log_v[j]);
}

// Sums over the blocks of the block's share of columns, what they say, and v of a plain step into turns[turn ^ 1].
template <typename T>
__device__ void add_columns(const Work<T>& w, Shared<T>& shared, int turn, bool bad_rows) {
  const Share share = share_of(w);
  constexpr int at_once = 20;  // loads on their way together: the blocks of 160 multiprocessors with 8 warps
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
  double* image = w.images + shared.control.current * w.m;
  double* residual = w.residuals + shared.control.current * w.m;
  double error = 0;
  bool bad = bad_rows, outside = false;
  for (int64_t tile = share.begin; tile < share.end; tile += warp_size) {
    const int64_t j = tile + lane;
    const bool mine = j < share.end, finishes = mine && warp == 0;
    const double b = finishes ? static_cast<double>(w.b[j]) : 0, x = finishes ? w.log_v[j] : 0;
    const double v = finishes ? static_cast<double>(w.turns[turn][j]) : 0;
    double sum = 0;
    for (int64_t k = warp; k < gridDim.x; k += at_once * warps) {
      T part[at_once];
#pragma unroll
      for (int q = 0; q < at_once; ++q)
        part[q] = mine && k + q * warps < gridDim.x ? __ldcg(w.partial + (k + q * warps) * w.stride + j) : 0;
#pragma unroll
      for (int q = 0; q < at_once; ++q) sum += static_cast<double>(part[q]);
    }
    shared.tiles[warp * warp_size + lane] = sum;
    __syncthreads();
    if (finishes) {
      sum = 0;
      for (int k = 0; k < warps; ++k) sum += shared.tiles[k * warp_size + lane];
      const double ratio = b / sum, y = log(ratio);
      error += fabs(v * sum - b);
      bad = bad || !(sum > 0);
      outside = outside || fabs(x) > Limits<T>::range;
      image[j] = y;
      residual[j] = y - x;
      w.turns[turn ^ 1][j] = static_cast<T>(ratio);
    }
    __syncthreads();
  }
  if (warp == 0) {
    error = warp_sum(error);
    bad = __any_sync(whole_warp, bad);
    outside = __any_sync(whole_warp, outside);
    if (lane == 0) {
      double* mine = w.scalars + blockIdx.x;
      mine[0] = error;
      mine[gridDim.x] = bad ? 1 : 0;
      mine[2 * gridDim.x] = outside ? 1 : 0;
    }
  }
}

__device__ inline int products_of(const Control& c) {
  return c.steps < plain_steps || c.held == 0 ? 0 : c.held * (c.held + 1) / 2 + c.held;
}

// Of the sums over columns or blocks a warp takes every (number of warps)-th, three at a time.
constexpr int sums_together = (sums + most_warps - 1) / most_warps;

// The block's share of the products of differences of residuals.
template <typename T>
__device__ void add_products(const Work<T>& w, const Control& c) {
  const Share share = share_of(w);
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
  const double* last = w.residuals + c.current * w.m;
  const int count = products_of(c), square = c.held * (c.held + 1) / 2;
  for (int base = warp; base < count; base += sums_together * warps) {
    const double *one[sums_together], *other[sums_together];
    double sum[sums_together] = {};
#pragma unroll
    for (int q = 0; q < sums_together; ++q) {
      int j = base + q * warps, i = 0;
      const bool weight = j >= square;
      if (weight) i = j < count ? j - square : 0;
      while (!weight && j > i) j -= ++i;
      one[q] = w.residuals + place(c.current, c.held, i) * w.m;
      other[q] = weight ? nullptr : w.residuals + place(c.current, c.held, j) * w.m;
    }
    for (int64_t k = share.begin + lane; k < share.end; k += warp_size)
#pragma unroll
      for (int q = 0; q < sums_together; ++q)
        sum[q] += (last[k] - one[q][k]) * (last[k] - (other[q] ? other[q][k] : 0));
#pragma unroll
    for (int q = 0; q < sums_together; ++q) {
      sum[q] = warp_sum(sum[q]);
      const int64_t row = 3 + base + q * warps;
      if (lane == 0 && row < 3 + count) w.scalars[row * gridDim.x + blockIdx.x] = sum[q];
    }
  }
}

// Sums over the blocks of `count` of the scalars from `begin` on, the same bits in every block.
template <typename T>
__device__ void add_scalars(const Work<T>& w, int begin, int count, double* totals) {
  constexpr int at_once = 5;  // of each: the blocks of 160 multiprocessors
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
  for (int base = warp; base < count; base += sums_together * warps) {
    double sum[sums_together] = {};
    for (int64_t b = lane; b < gridDim.x; b += at_once * warp_size) {
#pragma unroll
      for (int q = 0; q < sums_together; ++q)
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
          const int64_t block = b + k * warp_size, row = base + q * warps;
          sum[q] += row < count && block < gridDim.x ? __ldcg(w.scalars + (begin + row) * gridDim.x + block) : 0;
        }
    }
#pragma unroll
    for (int q = 0; q < sums_together; ++q) {
      sum[q] = warp_sum(sum[q]);
      if (lane == 0 && base + q * warps < count) totals[base + q * warps] = sum[q];
    }
  }
  __syncthreads();
}

// log v of the block's share becomes a combination of images, and turns[turn] its exponential; false, in all blocks
// alike and with a plain step made instead, if it would go further than the model is to be trusted.
template <typename T>
__device__ bool mix(const Work<T>& w, Shared<T>& shared, int turn, unsigned& phase) {
  const Share share = share_of(w);
  const Control& c = shared.control;
  const double* image = w.images + c.current * w.m;
  bool far = false;
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
    const double y = image[j];
    double x = y;
    for (int k = 0; k < c.held; ++k) x -= c.weight[k] * (y - w.images[place(c.current, c.held, k) * w.m + j]);
    far = far || !(fabs(x - y) <= longest_correction);
    w.log_v[j] = x;
    w.turns[turn][j] = static_cast<T>(exp(x));
  }
  far = __syncthreads_or(far);
  if (threadIdx.x == 0) w.scalars[static_cast<int64_t>(sums) * gridDim.x + blockIdx.x] = far ? 1 : 0;
  grid_barrier(w.arrived, phase);
  add_scalars(w, sums, 1, shared.totals);
  if (shared.totals[0] == 0) return true;
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
    w.log_v[j] = image[j];
    w.turns[turn][j] = static_cast<T>(exp(image[j]));
  }
  grid_barrier(w.arrived, phase);
  return false;
}

// What the decision asks for before the next visit, whose v is turns[turn].
template <typename T>
__device__ void act(const Work<T>& w, Shared<T>& shared, int turn, unsigned& phase) {
  const Share share = share_of(w);
  Control& c = shared.control;
  const Action action = c.action;
  const bool iterating = action == Action::plain || action == Action::mixed;
  if (c.save_best)
    for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) w.best[j] = w.log_v[j];
  bool forget = false;
  if (action == Action::mixed) {
    forget = !mix(w, shared, turn, phase);
  } else if (action == Action::plain) {
    const double* image = w.images + c.current * w.m;
    for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) w.log_v[j] = image[j];
  } else if (action == Action::restore) {
    for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
      w.log_v[j] = w.best[j];
      w.turns[turn][j] = static_cast<T>(exp(w.best[j]));
    }
    grid_barrier(w.arrived, phase);
  } else {
    if (action == Action::absorb)
      absorb(w);
    else
      enter_by_log_domain(w, share, phase);
    reset_columns(w, turn);
    grid_barrier(w.arrived, phase);
    if (action == Action::enter) log_rows(w);
    form_kernel(w);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (iterating) {
      c.held = forget ? 0 : (c.held < w.memory ? c.held + 1 : w.memory);
      c.current = (c.current + 1) % history;
    } else if (action != Action::restore) {
      ++c.entries;
      c.log_entries += action == Action::enter;
      start_iterating(c);
    }
  }
  __syncthreads();
}

template <typename T>
__device__ void begin(const Work<T>& w, Control& c, unsigned& phase) {
  const Slab<T> slab = slab_of(w);
  const Share share = share_of(w);
  const int64_t first = blockIdx.x * w.rows;
  for (int i = threadIdx.x; i < slab.rows; i += blockDim.x) w.formed_f[first + i] = w.f[first + i];
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) w.formed_g[j] = w.g[j];
  if (blockIdx.x == 0)
    for (int64_t j = w.m + threadIdx.x; j < w.stride; j += blockDim.x) w.turns[0][j] = w.turns[1][j] = 0;
  reset_columns(w, 0);
  if (threadIdx.x == 0) {
    start(c);
    c.entries = 1;
  }
  grid_barrier(w.arrived, phase);
  form_kernel(w);
}

template <typename T>
__device__ void finish(const Work<T>& w, const Control& c, int turn) {
  const Slab<T> slab = slab_of(w);
  const Share share = share_of(w);
  const int64_t first = blockIdx.x * w.rows;
  for (int64_t i = first + threadIdx.x; i < first + slab.rows; i += blockDim.x)
    w.f[i] = w.formed_f[i] + logarithm(w.u[i]);
  for (int64_t j = share.begin + threadIdx.x; j < share.end; j += blockDim.x) {
    w.g[j] = w.formed_g[j] + static_cast<T>(w.log_v[j]);
    w.v[j] = w.turns[turn][j];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    w.outcome[0] = c.error;
    w.outcome[1] = static_cast<double>(c.passes);
    w.outcome[2] = static_cast<double>(c.entries);
    w.outcome[3] = static_cast<double>(c.log_entries);
  }
}

// Rows of a group: 64 words of it to a thread where rows are wide enough, fewer where v and the column sums take as
// many.
template <typename T, int packs>
constexpr int group = packs == 0                     ? most_group / 2
                      : packs == 1                   ? most_group
                      : packs >= 4 && sizeof(T) == 8 ? 8 / packs
                                                     : 16 / packs;

template <typename T, int packs>
__global__ void __launch_bounds__(most_threads, 1) solve(Work<T> w) {
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic_shared());
  Control& c = shared.control;
  unsigned phase = 0;
  int turn = 0;
  begin(w, c, phase);
  while (true) {
    T* partial = w.partial + blockIdx.x * w.stride;
    bool good;
    if constexpr (packs > 0)
      good = visit_once<T, packs, group<T, packs>>(slab_of(w), w.turns[turn], partial, shared.slots, c.passes & 1);
    else
      good = visit_twice<T, group<T, packs>>(slab_of(w), w.turns[turn], partial, shared.slots);
    grid_barrier(w.arrived, phase);
    add_columns(w, shared, turn, !good);
    add_products(w, c);
    grid_barrier(w.arrived, phase);
    add_scalars(w, 0, 3 + products_of(c), shared.totals);
    if (threadIdx.x == 0) decide(c, w.tolerance, w.most, w.memory, shared.totals);
    __syncthreads();
    if (c.action == Action::done) break;
    turn ^= 1;
    act(w, shared, turn, phase);
  }
  finish(w, c, turn);
}

int attribute(cudaDeviceAttr name) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "CUDA device");
  check(cudaDeviceGetAttribute(&value, name, device), "CUDA device attribute");
  return value;
}

template <typename T>
using Kernel = void (*)(Work<T>);

template <typename T>
int64_t group_of(int packs) {
  return packs == 1   ? group<T, 1>
         : packs == 2 ? group<T, 2>
         : packs == 4 ? group<T, 4>
         : packs == 8 ? group<T, 8>
                      : group<T, 0>;
}

template <typename T>
Kernel<T> kernel_of(int packs) {
  return packs == 1   ? &solve<T, 1>
         : packs == 2 ? &solve<T, 2>
         : packs == 4 ? &solve<T, 4>
         : packs == 8 ? &solve<T, 8>
                      : &solve<T, 0>;
}

}  // namespace

template <typename T>
SinkhornShape sinkhorn_shape(int64_t n, int64_t m, int64_t resident) {
  constexpr int64_t width = Pack<T>::width;
  SinkhornShape shape{};
  const int64_t pieces = ceil_div(m, width);
  shape.stride = pieces * width;
  shape.packs = pieces <= most_threads       ? 1
                : pieces <= 2 * most_threads ? 2
                : pieces <= 4 * most_threads ? 4
                : pieces <= 8 * most_threads ? 8
                                             : 0;
  const int64_t wanted = ceil_div(ceil_div(pieces, std::max(1, shape.packs)), warp_size) * warp_size;
  shape.threads = static_cast<int>(std::clamp<int64_t>(wanted, 2 * warp_size, most_threads));
  const int64_t together = attribute(cudaDevAttrMultiProcessorCount), rows = group_of<T>(shape.packs);
  shape.rows = std::max(ceil_div(n, together), std::min(n, rows));
  shape.blocks = ceil_div(n, shape.rows);
  shape.share = ceil_div(ceil_div(m, shape.blocks), warp_size) * warp_size;

  const size_t row_bytes = shape.stride * sizeof(T), before = sizeof(Shared<T>);
  const size_t room = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int64_t fit = room > before ? (room - before) / row_bytes : 0;
  shape.resident = std::min({shape.rows, fit, resident < 0 ? shape.rows : resident});
  if (shape.resident < shape.rows) shape.resident = shape.resident / rows * rows;
  shape.shared_bytes = before + shape.resident * row_bytes;
  Work<T> w{};
  w.n = n;
  w.m = m;
  w.stride = shape.stride;
  shape.workspace_bytes = carve(w, shape.blocks, nullptr);
  return shape;
}

template <typename T>
void sinkhorn_solve(const SinkhornArguments<T>& arguments, const SinkhornSettings& settings, int64_t resident,
                    cudaStream_t stream) {
  const SinkhornShape shape = sinkhorn_shape<T>(arguments.n, arguments.m, resident);
  Work<T> w = work_of(arguments, shape);
  w.tolerance = settings.tolerance;
  // The barrier's counter is 32 bits wide; a visit takes four barriers at most.
  w.most = std::min<int64_t>(settings.most, 0xffffffffu / shape.blocks / 4 - 1000);
  w.memory = std::min(settings.memory, most_memory);
  w.aligned = w.m == w.stride && at_16_bytes(w.x);
  check(cudaMemsetAsync(w.arrived, 0, sizeof(unsigned), stream), "CUDA memset");
  launch(kernel_of<T>(shape.packs),
         {dim3(static_cast<unsigned>(shape.blocks)), dim3(shape.threads), shape.shared_bytes, true}, stream, w);
}

template SinkhornShape sinkhorn_shape<float>(int64_t, int64_t, int64_t);
template SinkhornShape sinkhorn_shape<double>(int64_t, int64_t, int64_t);
template void sinkhorn_solve<float>(const SinkhornArguments<float>&, const SinkhornSettings&, int64_t, cudaStream_t);
template void sinkhorn_solve<double>(const SinkhornArguments<double>&, const SinkhornSettings&, int64_t, cudaStream_t);

}  // namespace cuda
}  // namespace geowidth
