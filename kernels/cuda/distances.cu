// Distances of three geometries from a Gram matrix: one pass reads it once and writes every matrix wanted once.
//
// A thread owns a square of V x V entries (16 bytes of results each way: V = 4 for float, 2 for double), a warp a patch
// of 4 x 8 such squares, a block a tile of 4 x 2 patches. A symmetric matrix launches the tiles from the diagonal up; a
// thread writes its square and the square's transpose from registers, rows of 16 bytes both ways. Where the rows of the
// result are not aligned to 16 bytes (m not a multiple of V), a warp lays its patch into shared memory and writes it
// row by row, then column by column, whole runs of neighbours at a time. Pairs too close for the Gram matrix are
// computed from the raw rows by the whole warp, one after another.
#include "distances.h"

#include "device.h"
#include "geometry/hyperbolic.h"
#include "geometry/raw.h"
#include "launch.h"
#include "rows.h"

namespace geowidth {
namespace cuda {
namespace {

constexpr int lanes_down = 4, lanes_across = 8;  // squares of a patch
constexpr int warps_down = 4, warps_across = 2;  // patches of a tile
constexpr int block_threads = warps_down * warps_across * warp_size;
constexpr int block_warps = block_threads / warp_size;
constexpr int64_t most_blocks = 4096;  // of a survey of rows; further rows are taken by striding

// ---------------------------------------------------------------- geometry of a tile

template <typename O>
struct Tiling {
  static constexpr int side = 16 / sizeof(O);  // of a thread's square
  static constexpr int patch_rows = lanes_down * side, patch_columns = lanes_across * side;
  static constexpr int tile = warps_down * patch_rows;
  static constexpr int pitch = patch_columns + 1;  // of a patch in shared memory: columns hit different banks
  static_assert(tile == warps_across * patch_columns, "tiles are square");
};

struct Place {
  int64_t row, column;
};

// Tiles in row r of a trapezoid begin on its diagonal: the rows before r hold r * across - r (r - 1) / 2 of them.
__host__ __device__ inline int64_t tiles_before(int64_t r, int64_t across) { return r * across - r * (r - 1) / 2; }

// Row and column of a tile in the trapezoid, by its number.
__device__ inline Place tile_of(int64_t number, int64_t across) {
  const double middle = static_cast<double>(across) + 0.5;
  int64_t r = static_cast<int64_t>(middle - geometry::square_root(middle * middle - 2.0 * static_cast<double>(number)));
  while (r > 0 && tiles_before(r, across) > number) --r;
  while (tiles_before(r + 1, across) <= number) ++r;
  return {r, r + number - tiles_before(r, across)};
}

// The warp's patch.
template <typename T, typename G, typename O>
__device__ __forceinline__ Place patch_place(const DistanceArguments<T, G, O>& a) {
  using Size = Tiling<O>;
  const int64_t across = (a.m - a.column + Size::tile - 1) / Size::tile, number = blockIdx.x;
  const Place tile = a.symmetric ? tile_of(number, across) : Place{number / across, number % across};
  const int warp = threadIdx.x / warp_size;
  return {a.row + tile.row * Size::tile + warp / warps_across * Size::patch_rows,
          a.column + tile.column * Size::tile + warp % warps_across * Size::patch_columns};
}

template <typename O>
__device__ __forceinline__ Place square_place(Place patch, int lane) {
  return {patch.row + lane / lanes_across * Tiling<O>::side, patch.column + lane % lanes_across * Tiling<O>::side};
}

// What of `side` rows and columns from a place on is inside the panel, and where the diagonal runs through it: entry
// (r, c) lies on it if c == r - lead. Small numbers, so that asking costs one instruction.
struct Inside {
  int rows, columns, lead;
  __device__ bool entry(int r, int c) const { return r < rows && c < columns; }
  __device__ bool above(int r, int c) const { return c > r - lead; }
};

__device__ inline int clamped(int64_t value, int limit) {
  return static_cast<int>(value < -limit ? -limit : value > limit ? limit : value);
}

template <typename T, typename G, typename O>
__device__ __forceinline__ Inside inside(const DistanceArguments<T, G, O>& a, Place place, int side) {
  return {clamped(a.end - place.row, side), clamped(a.m - place.column, side),
          a.symmetric ? clamped(place.column - place.row, side) : side};
}

// ---------------------------------------------------------------- from the Gram matrix

// A thread's square: raw distances, and half squares with the sign of the cosine, as far as they are wanted; bit
// r * side + c tells that entry (r, c) is to be computed again.
template <typename O>
struct Square {
  static constexpr int side = Tiling<O>::side;
  O raw[side][side], half[side][side];
  unsigned raw_near, half_near;
};

template <int side, typename G>
__device__ __forceinline__ void load_gram(const G* address, G (&gram)[side]) {
  constexpr int size = RowPiece<G>::size;
  static_assert(side % size == 0, "whole pieces");
#pragma unroll
  for (int v = 0; v < side; v += size) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(address + v));
    memcpy(&gram[v], &bits, sizeof bits);
  }
}

template <typename T, typename G, typename O>
__device__ __forceinline__ void from_gram(const DistanceArguments<T, G, O>& a, Place place, Inside in, Square<O>& s) {
  constexpr int side = Square<O>::side;
  double square_y[side], inverse_y[side];
#pragma unroll
  for (int c = 0; c < side; ++c) {
    square_y[c] = c < in.columns ? __ldg(a.square_y + place.column + c) : 0.0;
    inverse_y[c] = c < in.columns ? __ldg(a.inverse_y + place.column + c) : 0.0;
  }
  G gram[side][side] = {};
  const G* row = a.gram + (place.row - a.row) * a.stride + (place.column - a.column);
#pragma unroll
  for (int r = 0; r < side; ++r, row += a.stride)  // all in flight before the first is used
    if (r < in.rows) load_gram(row, gram[r]);
#pragma unroll
  for (int r = 0; r < side; ++r) {
    const double square_x = r < in.rows ? __ldg(a.square_x + place.row + r) : 0.0;
    const double inverse_x = r < in.rows ? __ldg(a.inverse_x + place.row + r) : 0.0;
#pragma unroll
    for (int c = 0; c < side; ++c) {
      const unsigned bit = in.entry(r, c) && in.above(r, c) ? 1u << (r * side + c) : 0u;
      const double dot = static_cast<double>(gram[r][c]);
      if (a.out[0]) {
        const double square = geometry::raw_square(dot, square_x, square_y[c]);
        if (geometry::raw_is_near(square, square_x, square_y[c], a.near) || !geometry::square_fits(square, O()))
          s.raw_near |= bit;
        s.raw[r][c] = geometry::raw_distance(static_cast<O>(square));
      }
      if (a.out[1] || a.out[2]) {
        const double half = geometry::signed_half_square(dot * (inverse_x * inverse_y[c]));
        if (geometry::angle_is_near(half, a.near)) s.half_near |= bit;
        s.half[r][c] = static_cast<O>(half);
      }
    }
  }
}

// ---------------------------------------------------------------- from the raw rows

// values[bit / side][bit % side] = value, without an index that would send the array to memory.
template <int side, typename O>
__device__ __forceinline__ void put(O (&values)[side][side], int bit, O value) {
#pragma unroll
  for (int r = 0; r < side; ++r)
#pragma unroll
    for (int c = 0; c < side; ++c)
      if (r * side + c == bit) values[r][c] = value;
}

// values[r][c] = direct(i, j, values[r][c]) for every bit of every lane's mask, the whole warp on one pair at a time.
template <typename O, typename Direct>
__device__ __forceinline__ void refine(Place patch, unsigned mask, O (&values)[Tiling<O>::side][Tiling<O>::side],
                                       const Direct& direct) {
  constexpr int side = Tiling<O>::side;
  const int lane = threadIdx.x % warp_size;
  for (unsigned waiting = __ballot_sync(whole_warp, mask != 0); waiting;
       waiting = __ballot_sync(whole_warp, mask != 0)) {
    const int owner = __ffs(static_cast<int>(waiting)) - 1;
    const int bit = __ffs(static_cast<int>(__shfl_sync(whole_warp, mask, owner))) - 1;
    const Place square = square_place<O>(patch, owner);
    const O value = static_cast<O>(direct(square.row + bit / side, square.column + bit % side));
    if (lane == owner) {
      put(values, bit, value);
      mask &= mask - 1;
    }
  }
}

template <typename T, typename G, typename O>
__device__ __forceinline__ void refine_raw(const DistanceArguments<T, G, O>& a, Place patch, Square<O>& s) {
  refine<O>(patch, s.raw_near, s.raw, [&](int64_t i, int64_t j) {
    return geometry::raw_distance(warp_square(a.x + i * a.depth, a.y + j * a.depth, a.depth));
  });
}

template <typename T, typename G, typename O>
__device__ __forceinline__ void refine_half(const DistanceArguments<T, G, O>& a, Place patch, Square<O>& s) {
  refine<O>(patch, s.half_near, s.half, [&](int64_t i, int64_t j) {
    const double dot = static_cast<double>(a.gram[(i - a.row) * a.stride + (j - a.column)]);
    return copysign(warp_half_square(a.x + i * a.depth, a.y + j * a.depth, a.depth, a.square_x[i], a.square_y[j], dot),
                    dot);
  });
}

// The square on the diagonal: what lies under it is what lies above, and on it is 0 (NaN for a row that is not finite).
template <int side, typename O>
__device__ __forceinline__ void symmetrise(O (&values)[side][side], const double* square, int rows) {
#pragma unroll
  for (int r = 0; r < side; ++r) {
#pragma unroll
    for (int c = 0; c < r; ++c) values[r][c] = values[c][r];
    if (r < rows) values[r][r] = static_cast<O>(square[r] - square[r]);
  }
}

// ---------------------------------------------------------------- writing

template <int side, typename O>
__device__ __forceinline__ void store_piece(O* address, const O (&values)[side]) {
  uint4 bits;
  static_assert(sizeof bits == sizeof values, "16 bytes");
  memcpy(&bits, values, sizeof bits);
  __stcs(reinterpret_cast<uint4*>(address), bits);
}

// A thread's square, and its transpose below the diagonal, 16 bytes at a time: m is a multiple of side.
template <int side, typename T, typename G, typename O>
__device__ __forceinline__ void write_square(const DistanceArguments<T, G, O>& a, O* out, Place place, Inside in,
                                             const O (&values)[side][side]) {
  if (in.columns <= 0 || in.lead < 0) return;
  O* row = out + place.row * a.m + place.column;
#pragma unroll
  for (int r = 0; r < side; ++r, row += a.m)
    if (r < in.rows) store_piece(row, values[r]);
  if (!a.symmetric || in.lead == 0) return;
  O* mirror = out + place.column * a.m + place.row;
#pragma unroll
  for (int c = 0; c < side; ++c, mirror += a.m) {
    O column[side];
#pragma unroll
    for (int r = 0; r < side; ++r) column[r] = values[r][c];
    store_piece(mirror, column);
  }
}

// The warp's patch through its part of shared memory, neighbours by neighbouring lanes.
template <int side, typename T, typename G, typename O>
__device__ __forceinline__ void write_patch(const DistanceArguments<T, G, O>& a, O* out, Place patch,
                                            const O (&values)[side][side]) {
  using Size = Tiling<O>;
  O* shared = reinterpret_cast<O*>(dynamic_shared()) + threadIdx.x / warp_size * (Size::patch_rows * Size::pitch);
  const int lane = threadIdx.x % warp_size;
  const Place mine = square_place<O>({0, 0}, lane);
#pragma unroll
  for (int r = 0; r < side; ++r)
#pragma unroll
    for (int c = 0; c < side; ++c) shared[(mine.row + r) * Size::pitch + mine.column + c] = values[r][c];
  __syncwarp();
  const Inside in = inside(a, patch, Size::patch_columns);
  O* corner = out + patch.row * a.m + patch.column;
  for (int index = lane; index < Size::patch_rows * Size::patch_columns; index += warp_size) {
    const int r = index / Size::patch_columns, c = index % Size::patch_columns;
    if (in.entry(r, c) && (in.above(r, c) || c == r - in.lead))
      __stcs(corner + r * a.m + c, shared[r * Size::pitch + c]);
  }
  if (a.symmetric) {
    corner = out + patch.column * a.m + patch.row;
    for (int index = lane; index < Size::patch_rows * Size::patch_columns; index += warp_size) {
      const int r = index % Size::patch_rows, c = index / Size::patch_rows;
      if (in.entry(r, c) && in.above(r, c)) __stcs(corner + c * a.m + r, shared[r * Size::pitch + c]);
    }
  }
  __syncwarp();
}

template <bool aligned_rows, int side, typename T, typename G, typename O, typename Map>
__device__ __forceinline__ void write(const DistanceArguments<T, G, O>& a, O* out, Place patch, Inside in,
                                      const O (&carried)[side][side], const Map& map) {
  O values[side][side];
#pragma unroll
  for (int r = 0; r < side; ++r)
#pragma unroll
    for (int c = 0; c < side; ++c) values[r][c] = map(carried[r][c]);
  if (aligned_rows)
    write_square(a, out, square_place<O>(patch, threadIdx.x % warp_size), in, values);
  else
    write_patch(a, out, patch, values);
}

template <bool aligned_rows, typename T, typename G, typename O>
__global__ void __launch_bounds__(block_threads, 2) epilogue(const DistanceArguments<T, G, O> a) {
  const Place patch = patch_place(a);
  if (patch.row >= a.end || patch.column >= a.m ||
      (a.symmetric && patch.column + Tiling<O>::patch_columns <= patch.row))
    return;
  const Place place = square_place<O>(patch, threadIdx.x % warp_size);
  const Inside in = inside(a, place, Tiling<O>::side);
  Square<O> s = {};
  if (in.columns > 0 && in.lead >= 0) from_gram(a, place, in, s);
  refine_raw(a, patch, s);
  refine_half(a, patch, s);
  if (in.lead == 0) {
    symmetrise(s.raw, a.square_x + place.row, in.rows);
    symmetrise(s.half, a.square_x + place.row, in.rows);
  }
  if (a.out[0]) write<aligned_rows>(a, a.out[0], patch, in, s.raw, [](O distance) { return distance; });
  if (a.out[1])
    write<aligned_rows>(a, a.out[1], patch, in, s.half, [](O half) {
      return geometry::spherical_distance(geometry::magnitude(half), geometry::is_negative(half));
    });
  if (a.out[2])
    write<aligned_rows>(a, a.out[2], patch, in, s.half, [&](O half) {
      return geometry::hyperbolic_distance(geometry::magnitude(half), geometry::is_negative(half),
                                           static_cast<O>(a.scale));
    });
}

// ---------------------------------------------------------------- surveys

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    rows_kernel(CloudArguments<T> cloud, double smallest, double largest, CloudFacts* facts) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * block_warps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * block_warps + threadIdx.x / warp_size; i < cloud.count;
       i += step) {
    const T* row = cloud.rows + i * cloud.depth;
    const double square = warp_dot(row, row, cloud.depth);
    if (threadIdx.x % warp_size != 0) continue;
    cloud.square[i] = square;
    cloud.inverse[i] = 1.0 / geometry::square_root(square);
    if (square == 0) atomicMax(&facts->zero_row, 1);
    if (square > largest || (square < smallest && square > 0)) atomicMax(&facts->extreme_row, 1);
  }
}

// Steele, Lea, Flood (2014): SplitMix64's output function.
__device__ inline uint64_t scrambled(uint64_t x) {
  x = (x + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A warp a pair.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    pairs_kernel(CloudArguments<T> x, CloudArguments<T> y, int samples, double near, bool raw, bool angular,
                 bool symmetric, CloudFacts* facts) {
  const int sample = static_cast<int>(blockIdx.x) * block_warps + static_cast<int>(threadIdx.x) / warp_size;
  if (sample >= samples) return;
  const int64_t i = static_cast<int64_t>(scrambled(2u * static_cast<unsigned>(sample)) % x.count);
  const int64_t j = static_cast<int64_t>(scrambled(2u * static_cast<unsigned>(sample) + 1) % y.count);
  if (symmetric && i == j) return;
  const double dot = warp_dot(x.rows + i * x.depth, y.rows + j * x.depth, x.depth);
  if (threadIdx.x % warp_size != 0) return;
  const double square_x = x.square[i], square_y = y.square[j];
  const double square = geometry::raw_square(dot, square_x, square_y);
  const double half = geometry::signed_half_square(dot * (x.inverse[i] * y.inverse[j]));
  if ((raw && geometry::raw_is_near(square, square_x, square_y, near)) ||
      (angular && geometry::angle_is_near(half, near)))
    atomicAdd(&facts->near_pairs, 1);
}

}  // namespace

// ---------------------------------------------------------------- launches

template <typename T>
void survey_rows(const CloudArguments<T>& cloud, double smallest, double largest, CloudFacts* facts,
                 cudaStream_t stream) {
  if (cloud.count == 0) return;
  const int64_t blocks = ceil_div(cloud.count, block_warps);
  launch(&rows_kernel<T>,
         {dim3(static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks)), dim3(block_threads)}, stream, cloud,
         smallest, largest, facts);
}

template <typename T>
void survey_pairs(const CloudArguments<T>& x, const CloudArguments<T>& y, int samples, double near, bool raw,
                  bool angular, bool symmetric, CloudFacts* facts, cudaStream_t stream) {
  if (x.count == 0 || y.count == 0 || samples == 0) return;
  launch(&pairs_kernel<T>, {dim3(static_cast<unsigned>(ceil_div(samples, block_warps))), dim3(block_threads)}, stream,
         x, y, samples, near, raw, angular, symmetric, facts);
}

template <typename T, typename G, typename O>
void distance_epilogue(const DistanceArguments<T, G, O>& a, cudaStream_t stream) {
  using Size = Tiling<O>;
  if (a.end <= a.row || a.m <= a.column) return;
  const int64_t down = ceil_div(a.end - a.row, Size::tile), across = ceil_div(a.m - a.column, Size::tile);
  const dim3 grid(static_cast<unsigned>(a.symmetric ? tiles_before(down, across) : down * across));
  bool aligned_rows = a.m % Size::side == 0;
  for (const O* out : a.out) aligned_rows = aligned_rows && at_16_bytes(out);
  constexpr size_t patches = block_warps * Size::patch_rows * Size::pitch * sizeof(O);
  if (aligned_rows)
    launch(&epilogue<true, T, G, O>, {grid, dim3(block_threads)}, stream, a);
  else
    launch(&epilogue<false, T, G, O>, {grid, dim3(block_threads), patches}, stream, a);
}

#define GEOWIDTH_SURVEYS(T)                                                                                        \
  template void survey_rows<T>(const CloudArguments<T>&, double, double, CloudFacts*, cudaStream_t);               \
  template void survey_pairs<T>(const CloudArguments<T>&, const CloudArguments<T>&, int, double, bool, bool, bool, \
                                CloudFacts*, cudaStream_t);
GEOWIDTH_SURVEYS(double)
GEOWIDTH_SURVEYS(float)
GEOWIDTH_SURVEYS(__half)
GEOWIDTH_SURVEYS(__nv_bfloat16)
#undef GEOWIDTH_SURVEYS

template void distance_epilogue(const DistanceArguments<double, double, double>&, cudaStream_t);
template void distance_epilogue(const DistanceArguments<float, double, float>&, cudaStream_t);
template void distance_epilogue(const DistanceArguments<float, float, float>&, cudaStream_t);
template void distance_epilogue(const DistanceArguments<__half, float, float>&, cudaStream_t);
template void distance_epilogue(const DistanceArguments<__nv_bfloat16, float, float>&, cudaStream_t);

}  // namespace cuda
}  // namespace geowidth
