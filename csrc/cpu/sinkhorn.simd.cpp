// Row kernels of Sinkhorn's iterations, float and double. See sinkhorn.cpp.
//
// The log-kernel is never stored: its entry is scale * (x_ij + r_i s_j), formed where it is used.
#include <cstdint>

// Vectors wider than the target's never cross a call: whatever takes or returns one is inlined.
#define GEOWIDTH_INLINE __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

template <typename T>
struct Of;

template <>
struct Of<float> {
  static constexpr int64_t lanes = 16;
  typedef float Vector __attribute__((vector_size(64), aligned(4)));
  typedef int32_t Bits __attribute__((vector_size(64)));
  static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  static constexpr float lowest = -126.0f, highest = 126.0f;
  static constexpr float least = -1e30f;
  static constexpr int shift = 23;
  // 2^f on [-1/2, 1/2], relative error 2e-8 before rounding (Taylor, the last terms stretched)
  GEOWIDTH_INLINE static Vector power(Vector f) {
    Vector p = Vector{} + 1.5353362e-4f;
    p = p * f + 1.3398874e-3f;
    p = p * f + 9.6184370e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    return p * f + 1.0f;
  }
};

template <>
struct Of<double> {
  static constexpr int64_t lanes = 8;
  typedef double Vector __attribute__((vector_size(64), aligned(8)));
  typedef int64_t Bits __attribute__((vector_size(64)));
  static constexpr double magic = 6755399441055744.0;
  static constexpr double lowest = -1022.0, highest = 1022.0;
  static constexpr double least = -1e300;
  static constexpr int shift = 52;
  // exp(z), z = f ln 2 in [-0.35, 0.35], by its series: the 14th term is below 1e-17
  GEOWIDTH_INLINE static Vector power(Vector f) {
    const Vector z = f * 0.69314718055994530942;
    Vector p = Vector{} + 1.0 / 6227020800.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z + 1.0 / 39916800.0;
    p = p * z + 1.0 / 3628800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z + 1.0 / 5040.0;
    p = p * z + 1.0 / 720.0;
    p = p * z + 1.0 / 120.0;
    p = p * z + 1.0 / 24.0;
    p = p * z + 1.0 / 6.0;
    p = p * z + 0.5;
    p = p * z + 1.0;
    return p * z + 1.0;
  }
};

template <typename T>
using Vector = typename Of<T>::Vector;

template <typename T>
GEOWIDTH_INLINE inline Vector<T> load(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}

template <typename T>
GEOWIDTH_INLINE inline void store(T* p, Vector<T> x) {
  *reinterpret_cast<Vector<T>*>(p) = x;
}

template <typename T>
GEOWIDTH_INLINE inline T total(Vector<T> x) {
  T sum = 0;
  for (int k = 0; k < Of<T>::lanes; ++k) sum += x[k];
  return sum;
}

// The last, shorter piece of a row: `count` values, the other lanes `fill`.
template <typename T>
GEOWIDTH_INLINE inline Vector<T> load_some(const T* p, int64_t count, T fill) {
  Vector<T> x = Vector<T>{} + fill;
  for (int64_t k = 0; k < count; ++k) x[k] = p[k];
  return x;
}

template <typename T>
GEOWIDTH_INLINE inline void store_some(T* p, Vector<T> x, int64_t count) {
  for (int64_t k = 0; k < count; ++k) p[k] = x[k];
}

// exp(x): 0 below the normal range, the largest power of two above it; never NaN or infinite for finite x.
template <typename T>
GEOWIDTH_INLINE inline Vector<T> exponential(Vector<T> x) {
  typedef typename Of<T>::Bits Bits;
  const T log2e = static_cast<T>(1.44269504088896340736);
  const Vector<T> low = Vector<T>{} + Of<T>::lowest, high = Vector<T>{} + Of<T>::highest;
  Vector<T> t = x * log2e;
  const Vector<T> zero = {};
  t = t > high ? high : t;
  const auto small = t < low;
  t = small ? low : t;
  const Vector<T> shifted = t + Of<T>::magic;
  const Vector<T> f = t - (shifted - Of<T>::magic);
  const Bits k = (Bits)shifted;
  const Vector<T> p = Of<T>::power(f);
  const Vector<T> result = (Vector<T>)((Bits)p + (k << Of<T>::shift));
  return small ? zero : result;
}

// Calls body(j, count, first vector index) for every piece of a row of n: whole vectors, then one shorter piece.
template <typename T, typename Body>
GEOWIDTH_INLINE inline void pieces(int64_t n, Body body) {
  int64_t j = 0;
  for (; j + Of<T>::lanes <= n; j += Of<T>::lanes) body(j, Of<T>::lanes);
  if (j < n) body(j, n - j);
}

template <typename T>
GEOWIDTH_INLINE inline Vector<T> take(const T* p, int64_t count, T fill = 0) {
  return count == Of<T>::lanes ? load(p) : load_some(p, count, fill);
}

template <typename T>
GEOWIDTH_INLINE inline void put(T* p, Vector<T> x, int64_t count) {
  if (count == Of<T>::lanes)
    store(p, x);
  else
    store_some(p, x, count);
}

constexpr int64_t group = 4;  // rows per visit of the column sums

template <typename T, int64_t Rows>
GEOWIDTH_INLINE inline void group_pass(const T* k, int64_t m, const T* a, const T* v, T* u, T* c) {
  Vector<T> sum[Rows] = {};
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> vj = take(v + j, count);
    for (int64_t r = 0; r < Rows; ++r) sum[r] += take(k + r * m + j, count) * vj;
  });
  for (int64_t r = 0; r < Rows; ++r) u[r] = a[r] / total<T>(sum[r]);
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    Vector<T> cj = take(c + j, count);
    for (int64_t r = 0; r < Rows; ++r) cj += take(k + r * m + j, count) * u[r];
    put(c + j, cj, count);
  });
}

template <typename T>
GEOWIDTH_INLINE inline void pass(const T* k, int64_t rows, int64_t m, const T* a, const T* v, T* u, T* c) {
  for (int64_t j = 0; j < m; ++j) c[j] = 0;
  int64_t i = 0;
  for (; i + group <= rows; i += group) group_pass<T, group>(k + i * m, m, a + i, v, u + i, c);
  for (; i < rows; ++i) group_pass<T, 1>(k + i * m, m, a + i, v, u + i, c);
}

template <typename T>
GEOWIDTH_INLINE inline void kernel_row(const T* x, int64_t m, T scale, T r, const T* s, T f, const T* g, T* k) {
  const T slope = scale * r;
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> e = take(x + j, count) * scale + (take(s + j, count) * slope + (take(g + j, count) + f));
    put(k + j, exponential<T>(e), count);
  });
}

// log sum_j exp(entry_j + g_j)
template <typename T>
GEOWIDTH_INLINE inline T row_log_sum(const T* x, int64_t m, T scale, T r, const T* s, const T* g) {
  const T slope = scale * r;
  Vector<T> top = Vector<T>{} + Of<T>::least;
  const auto entry = [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    return take(x + j, count) * scale + (take(s + j, count) * slope + take(g + j, count, Of<T>::least));
  };
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> e = entry(j, count);
    top = e > top ? e : top;
  });
  T largest = top[0];
  for (int k = 1; k < Of<T>::lanes; ++k) largest = top[k] > largest ? top[k] : largest;
  Vector<T> sum = {};
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE { sum += exponential<T>(entry(j, count) - largest); });
  return largest + static_cast<T>(__builtin_log(static_cast<double>(total<T>(sum))));
}

// Online log-sum-exp down the columns: top and sum (m) take in one more row.
template <typename T>
GEOWIDTH_INLINE inline void add_row_to_columns(const T* x, int64_t m, T scale, T r, const T* s, T f, T* top, T* sum) {
  const T slope = scale * r;
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> e = take(x + j, count) * scale + (take(s + j, count) * slope + f);
    const Vector<T> old = take(top + j, count), now = e > old ? e : old;
    put(sum + j, take(sum + j, count) * exponential<T>(old - now) + exponential<T>(e - now), count);
    put(top + j, now, count);
  });
}

// plan_j = u k_j v_j and, in double, sums[0] = sum |plan_j - old_j|, [1] = sum x_j plan_j, [2] = sum s_j plan_j.
template <typename T>
GEOWIDTH_INLINE inline void plan_row(const T* k, const T* x, const T* s, const T* old, int64_t m, T u, const T* v, T* plan,
                                     double* sums) {
  const Vector<T> zero = {};
  constexpr int64_t block = 16 * Of<T>::lanes;  // short sums in T, added up in double
  double whole[3] = {};
  for (int64_t b = 0; b < m; b += block) {
    const int64_t end = b + block < m ? b + block : m;
    Vector<T> part[3] = {};
    pieces<T>(end - b, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
      const Vector<T> p = take(k + b + j, count) * take(v + b + j, count) * u;
      const Vector<T> difference = p - take(old + b + j, count);
      part[0] += difference < zero ? -difference : difference;
      part[1] += p * take(x + b + j, count);
      part[2] += p * take(s + b + j, count);
      put(plan + b + j, p, count);
    });
    for (int q = 0; q < 3; ++q) whole[q] += static_cast<double>(total<T>(part[q]));
  }
  for (int q = 0; q < 3; ++q) sums[q] = whole[q];
}

template <typename T>
GEOWIDTH_INLINE inline double dot_row(const T* x, const T* y, int64_t m) {
  double sum = 0;
  constexpr int64_t block = 16 * Of<T>::lanes;
  for (int64_t b = 0; b < m; b += block) {
    const int64_t end = b + block < m ? b + block : m;
    Vector<T> q = {};
    pieces<T>(end - b, [&](int64_t j, int64_t count) GEOWIDTH_INLINE { q += take(x + b + j, count) * take(y + b + j, count); });
    sum += static_cast<double>(total<T>(q));
  }
  return sum;
}

// The sum of a row in double; columns[j] += p[j].
template <typename T>
GEOWIDTH_INLINE inline double sum_row(const T* p, int64_t m, double* columns) {
  double lanes[8] = {};
  int64_t j = 0;
  for (; j + 8 <= m; j += 8)
    for (int k = 0; k < 8; ++k) {
      const double value = p[j + k];
      lanes[k] += value;
      columns[j + k] += value;
    }
  for (; j < m; ++j) {
    lanes[0] += p[j];
    columns[j] += p[j];
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace

#define GEOWIDTH_SINKHORN(T, suffix)                                                                                  \
  void sinkhorn_pass_##suffix(const T* k, int64_t rows, int64_t m, const T* a, const T* v, T* u, T* c) {              \
    pass<T>(k, rows, m, a, v, u, c);                                                                                  \
  }                                                                                                                   \
  void sinkhorn_kernel_row_##suffix(const T* x, int64_t m, T scale, T r, const T* s, T f, const T* g, T* k) {         \
    kernel_row<T>(x, m, scale, r, s, f, g, k);                                                                        \
  }                                                                                                                   \
  T sinkhorn_row_log_sum_##suffix(const T* x, int64_t m, T scale, T r, const T* s, const T* g) {                      \
    return row_log_sum<T>(x, m, scale, r, s, g);                                                                      \
  }                                                                                                                   \
  void sinkhorn_add_row_##suffix(const T* x, int64_t m, T scale, T r, const T* s, T f, T* top, T* sum) {              \
    add_row_to_columns<T>(x, m, scale, r, s, f, top, sum);                                                            \
  }                                                                                                                   \
  void sinkhorn_plan_row_##suffix(const T* k, const T* x, const T* s, const T* old, int64_t m, T u, const T* v,       \
                                  T* plan, double* sums) {                                                            \
    plan_row<T>(k, x, s, old, m, u, v, plan, sums);                                                                   \
  }                                                                                                                   \
  double sinkhorn_dot_row_##suffix(const T* x, const T* y, int64_t m) { return dot_row<T>(x, y, m); }                 \
  double sinkhorn_sum_row_##suffix(const T* p, int64_t m, double* columns) { return sum_row<T>(p, m, columns); }

GEOWIDTH_SINKHORN(float, float)
GEOWIDTH_SINKHORN(double, double)

}  // namespace geowidth::GEOWIDTH_VARIANT
