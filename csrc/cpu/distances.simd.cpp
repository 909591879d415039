#include "cpu/distances.h"

#include "cpu/lanes.h"
#include "geometry/hyperbolic.h"
#include "geometry/raw.h"
#include "geometry/rows.h"
#include "geometry/spherical.h"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

#if defined(__AVX512F__)
constexpr int kernel_rows = 8, kernel_vectors = 3;  // 24 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int kernel_rows = 4, kernel_vectors = 3;  // 12 of 16
#elif defined(__aarch64__)
constexpr int kernel_rows = 4, kernel_vectors = 6;  // 24 of 32
#else
constexpr int kernel_rows = 4, kernel_vectors = 2;  // 8 of 16
#endif
constexpr int width = register_lanes<double>;
constexpr int kernel_columns = kernel_vectors * width;
// Columns of x and y worked on at a time: a panel's share stays in the first cache.
constexpr int64_t depth_block = 256;
static_assert(panel % kernel_rows == 0 && panel % kernel_columns == 0, "panels hold whole kernels");

using Doubles = Register<double>;

template <typename T>
inline Doubles load_register(const T* p) {
  return __builtin_convertvector(*reinterpret_cast<const Register<T, width>*>(p), Doubles);
}

inline void store_register(double* p, Doubles x) { *reinterpret_cast<Doubles*>(p) = x; }

inline double register_total(Doubles x) {
  double sum = 0;
  for (int l = 0; l < width; ++l) sum += x[l];
  return sum;
}

// gram[r][c] += sum_k a[k][r] b[k][c] for kernel_rows x kernel_columns entries, k in order.
inline void gram_kernel(const double* a, const double* b, int64_t depth, double* gram) {
  Doubles sum[kernel_rows][kernel_vectors];
#pragma GCC unroll 8
  for (int r = 0; r < kernel_rows; ++r)
#pragma GCC unroll 6
    for (int v = 0; v < kernel_vectors; ++v) sum[r][v] = load_register(gram + r * tile + v * width);
  for (int64_t k = 0; k < depth; ++k, a += panel, b += panel) {
    Doubles column[kernel_vectors];
#pragma GCC unroll 6
    for (int v = 0; v < kernel_vectors; ++v) column[v] = load_register(b + v * width);
#pragma GCC unroll 8
    for (int r = 0; r < kernel_rows; ++r)
#pragma GCC unroll 6
      for (int v = 0; v < kernel_vectors; ++v) sum[r][v] += a[r] * column[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kernel_rows; ++r)
#pragma GCC unroll 6
    for (int v = 0; v < kernel_vectors; ++v) store_register(gram + r * tile + v * width, sum[r][v]);
}

// |x - y|^2 from the rows themselves.
template <typename T>
double direct_square(const T* x, const T* y, int64_t depth) {
  Doubles first = {}, second = {};
  int64_t k = 0;
  for (; k + 2 * width <= depth; k += 2 * width) {
    const Doubles d = load_register(x + k) - load_register(y + k);
    const Doubles e = load_register(x + k + width) - load_register(y + k + width);
    first += d * d;
    second += e * e;
  }
  double sum = register_total(first + second);
  for (; k < depth; ++k) {
    const double d = static_cast<double>(x[k]) - static_cast<double>(y[k]);
    sum += d * d;
  }
  return sum;
}

// a - factor b with one rounding.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline Doubles residual(Doubles a, double factor, Doubles b) { return a - factor * b; }
#else
inline Doubles residual(Doubles a, double factor, Doubles b) {
  for (int l = 0; l < width; ++l) a[l] = fma(-factor, b[l], a[l]);
  return a;
}
#endif

// sin^2(t/2) from the rows themselves: geometry/rows.h, vectorised.
template <typename T>
double direct_half_square(const T* x, const T* y, int64_t depth, double square_x, double square_y, double dot) {
  const auto rows = geometry::ordered(x, y, depth, square_x, square_y);
  const double factor = geometry::projection_factor(dot, rows.square_b, x);
  Doubles squares = {}, alongs = {};
  int64_t k = 0;
  for (; k + width <= depth; k += width) {
    const Doubles base = load_register(rows.b + k), r = residual(load_register(rows.a + k), factor, base);
    squares += r * r;
    alongs += r * base;
  }
  double square = register_total(squares), along = register_total(alongs);
  for (; k < depth; ++k) {
    const double base = static_cast<double>(rows.b[k]), r = fma(-factor, base, static_cast<double>(rows.a[k]));
    square += r * r;
    along += r * base;
  }
  return geometry::half_square_from_residual(square, along, rows.square_a, rows.square_b);
}

// Squared raw distances of one row of a strip; tells whether any must be computed again.
template <typename T>
bool raw_row(const double* __restrict gram, double square_x, const double* __restrict square_y, double near,
             T* __restrict out) {
  int64_t any = 0;  // as wide as a double, so that the loop vectorises
  for (int64_t j = 0; j < tile; ++j) {
    const double square = geometry::raw_square(gram[j], square_x, square_y[j]);
    any |= (geometry::raw_is_near(square, square_x, square_y[j], near) ? 1 : 0) |
           (geometry::square_fits(square, T()) ? 0 : 1);
    out[j] = static_cast<T>(square);
  }
  return any;
}

// Signed half squares likewise.
template <typename T>
bool angle_row(const double* __restrict gram, double inverse_x, const double* __restrict inverse_y, double near,
               T* __restrict out) {
  int64_t any = 0;  // as wide as a double, so that the loop vectorises
  for (int64_t j = 0; j < tile; ++j) {
    const double half = geometry::signed_half_square(gram[j] * (inverse_x * inverse_y[j]));
    any |= geometry::angle_is_near(half, near) ? 1 : 0;
    out[j] = static_cast<T>(half);
  }
  return any;
}

// Distances of one row again where `raw_row` told so.
template <typename T>
void refine_raw(const Strip<T>& s, int64_t i, const double* gram, T* out) {
  const int64_t depth = s.x->depth;
  for (int64_t j = 0; j < s.columns; ++j) {
    const double square_x = s.x->square[i], square_y = s.y->square[s.column + j];
    const double square = geometry::raw_square(gram[j], square_x, square_y);
    if (geometry::raw_is_near(square, square_x, square_y, s.targets->near) || !geometry::square_fits(square, T()))
      out[j] = static_cast<T>(
          geometry::raw_distance(direct_square(s.x->data + i * depth, s.y->data + (s.column + j) * depth, depth)));
  }
}

template <typename T>
void refine_angle(const Strip<T>& s, int64_t i, const double* gram, T* out) {
  const int64_t depth = s.x->depth;
  for (int64_t j = 0; j < s.columns; ++j) {
    const int64_t c = s.column + j;
    const double cosine = gram[j] * (s.x->inverse[i] * s.y->inverse[c]);
    if (!geometry::angle_is_near(geometry::signed_half_square(cosine), s.targets->near)) continue;
    const double half = direct_half_square(s.x->data + i * depth, s.y->data + c * depth, depth, s.x->square[i],
                                           s.y->square[c], gram[j]);
    out[j] = static_cast<T>(copysign(half, cosine));
  }
}

template <typename T>
void spherical_row(const T* __restrict half, T* __restrict out) {
  for (int64_t j = 0; j < tile; ++j)
    out[j] = geometry::spherical_distance(geometry::magnitude(half[j]), geometry::is_negative(half[j]));
}

template <typename T>
void hyperbolic_row(const T* __restrict half, T scale, T* __restrict out) {
  for (int64_t j = 0; j < tile; ++j)
    out[j] = geometry::hyperbolic_distance(geometry::magnitude(half[j]), geometry::is_negative(half[j]), scale);
}

template <typename T>
void fill_strip(const Strip<T>& s) {
  const Targets<T>& t = *s.targets;
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t i = s.row + r;
    const double* gram = s.gram + r * tile;
    const int64_t diagonal = t.symmetric ? i - s.column : -1;
    const bool on_diagonal = diagonal >= 0 && diagonal < s.columns;
    const double zero = s.x->square[i] - s.x->square[i];  // NaN for a row that is not finite
    alignas(64) T carried[tile];
    if (t.out[0]) {
      const bool again = raw_row(gram, s.x->square[i], s.y->square + s.column, t.near, carried);
      if (on_diagonal) carried[diagonal] = static_cast<T>(zero);
      T* out = s.result[0] + r * tile;
      for (int64_t j = 0; j < tile; ++j) out[j] = geometry::raw_distance(carried[j]);
      if (again) refine_raw(s, i, gram, out);
    }
    if (!t.out[1] && !t.out[2]) continue;
    if (angle_row(gram, s.x->inverse[i], s.y->inverse + s.column, t.near, carried)) refine_angle(s, i, gram, carried);
    if (on_diagonal) carried[diagonal] = static_cast<T>(zero);
    if (t.out[1]) spherical_row(carried, s.result[1] + r * tile);
    if (t.out[2]) hyperbolic_row(carried, static_cast<T>(t.scale), s.result[2] + r * tile);
  }
}

}  // namespace

void gram_tile(const double* a, const double* b, int64_t depth, int64_t a_panels, int64_t b_panels, bool triangle,
               double* gram) {
  for (int64_t i = 0; i < a_panels * panel * tile; ++i) gram[i] = 0;
  for (int64_t k = 0; k < depth; k += depth_block) {
    const int64_t block = depth - k < depth_block ? depth - k : depth_block;
    for (int64_t q = 0; q < b_panels; ++q)
      for (int64_t p = 0; p < (triangle ? q + 1 : a_panels); ++p)
        for (int64_t c = 0; c < panel; c += kernel_columns)
          for (int64_t r = 0; r < panel; r += kernel_rows)
            gram_kernel(a + (p * depth + k) * panel + r, b + (q * depth + k) * panel + c, block,
                        gram + (p * panel + r) * tile + q * panel + c);
  }
}

void distance_strip(const Strip<float>& strip) { fill_strip(strip); }
void distance_strip(const Strip<double>& strip) { fill_strip(strip); }

}  // namespace geowidth::GEOWIDTH_VARIANT
