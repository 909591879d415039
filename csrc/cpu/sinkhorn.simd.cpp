// Row kernels of Sinkhorn's iterations, float and double. See sinkhorn.cpp.
//
// The log-kernel is never stored: its entry is scale * (x_ij + r_i s_j), formed where it is used.
// Exponents are written in a set order: the compiler fuses a product into a sum only within one block of code, so
// another order would change the bits of the shorter last piece of a row.
#include "cpu/sinkhorn.h"

#include "cpu/vector_math.h"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

template <typename T>
constexpr T least = static_cast<T>(sizeof(T) == sizeof(float) ? -1e30 : -1e300);  // below every exponent

constexpr int64_t group = 4;  // rows per visit of the column sums

template <typename T, int64_t Rows>
GEOWIDTH_INLINE inline void group_pass(const T* k, int64_t m, const T* a, const T* v, T* u, T* c) {
  Vector<T> sum[Rows] = {};
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> vj = take(v + j, count);
    for (int64_t r = 0; r < Rows; ++r) sum[r] += take(k + r * m + j, count) * vj;
  });
  for (int64_t r = 0; r < Rows; ++r) u[r] = a[r] / total(sum[r]);
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
    const Vector<T> scaled = take(x + j, count) * scale, linear = take(s + j, count) * slope;
    put(k + j, exponential_or_zero<T>(scaled + (linear + (take(g + j, count) + f))), count);
  });
}

// log sum_j exp(entry_j + g_j)
template <typename T>
GEOWIDTH_INLINE inline T row_log_sum(const T* x, int64_t m, T scale, T r, const T* s, const T* g) {
  const T slope = scale * r;
  Vector<T> top = least<T>;
  const auto entry = [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> scaled = take(x + j, count) * scale, linear = take(s + j, count) * slope;
    return scaled + (linear + take(g + j, count, least<T>));
  };
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> e = entry(j, count);
    top = larger(e, top);
  });
  const T most = largest(top, least<T>);
  Vector<T> sum = {};
  pieces<T>(m,
            [&](int64_t j, int64_t count) GEOWIDTH_INLINE { sum += exponential_or_zero<T>(entry(j, count) - most); });
  return most + static_cast<T>(__builtin_log(static_cast<double>(total(sum))));
}

// Online log-sum-exp down the columns: top and sum (m) take in one more row.
template <typename T>
GEOWIDTH_INLINE inline void add_row_to_columns(const T* x, int64_t m, T scale, T r, const T* s, T f, T* top, T* sum) {
  const T slope = scale * r;
  pieces<T>(m, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
    const Vector<T> scaled = take(x + j, count) * scale, e = scaled + (take(s + j, count) * slope + f);
    const Vector<T> old = take(top + j, count), now = larger(e, old);
    put(sum + j, take(sum + j, count) * exponential_or_zero<T>(old - now) + exponential_or_zero<T>(e - now), count);
    put(top + j, now, count);
  });
}

// plan_j = u k_j v_j and, in double, sums[0] = sum |plan_j - old_j|, [1] = sum x_j plan_j, [2] = sum s_j plan_j.
template <typename T>
GEOWIDTH_INLINE inline void plan_row(const T* k, const T* x, const T* s, const T* old, int64_t m, T u, const T* v,
                                     T* plan, double* sums) {
  constexpr int64_t block = 16 * lanes<T>;  // short sums in T, added up in double
  double whole[3] = {};
  for (int64_t b = 0; b < m; b += block) {
    const int64_t end = b + block < m ? b + block : m;
    Vector<T> part[3] = {};
    pieces<T>(end - b, [&](int64_t j, int64_t count) GEOWIDTH_INLINE {
      const Vector<T> p = take(k + b + j, count) * take(v + b + j, count) * u;
      const Vector<T> difference = p - take(old + b + j, count);
      part[0] += choose(difference < T(0), -difference, difference);
      part[1] += p * take(x + b + j, count);
      part[2] += p * take(s + b + j, count);
      put(plan + b + j, p, count);
    });
    for (int q = 0; q < 3; ++q) whole[q] += static_cast<double>(total(part[q]));
  }
  for (int q = 0; q < 3; ++q) sums[q] = whole[q];
}

template <typename T>
GEOWIDTH_INLINE inline double dot_row(const T* x, const T* y, int64_t m) {
  double sum = 0;
  constexpr int64_t block = 16 * lanes<T>;
  for (int64_t b = 0; b < m; b += block) {
    const int64_t end = b + block < m ? b + block : m;
    Vector<T> q = {};
    pieces<T>(end - b,
              [&](int64_t j, int64_t count) GEOWIDTH_INLINE { q += take(x + b + j, count) * take(y + b + j, count); });
    sum += static_cast<double>(total(q));
  }
  return sum;
}

// The sum of a row in double; columns[j] += p[j].
template <typename T>
GEOWIDTH_INLINE inline double sum_row(const T* p, int64_t m, double* columns) {
  constexpr int64_t width = lanes<double>;
  Vector<double> sums = {};
  int64_t j = 0;
  for (; j + width <= m; j += width) {
    const auto value = load_as<double>(p + j);
    sums += value;
    store(columns + j, load(columns + j) + value);
  }
  double lane[width];
  store(lane, sums);
  for (; j < m; ++j) {
    lane[0] += p[j];
    columns[j] += p[j];
  }
  return tree_total(load(lane));
}

}  // namespace

#define GEOWIDTH_DEFINE(T)                                                                                      \
  void sinkhorn_pass(const T* k, int64_t rows, int64_t m, const T* a, const T* v, T* u, T* c) {                 \
    pass<T>(k, rows, m, a, v, u, c);                                                                            \
  }                                                                                                             \
  void sinkhorn_kernel_row(const T* x, int64_t m, T scale, T r, const T* s, T f, const T* g, T* k) {            \
    kernel_row<T>(x, m, scale, r, s, f, g, k);                                                                  \
  }                                                                                                             \
  T sinkhorn_row_log_sum(const T* x, int64_t m, T scale, T r, const T* s, const T* g) {                         \
    return row_log_sum<T>(x, m, scale, r, s, g);                                                                \
  }                                                                                                             \
  void sinkhorn_add_row(const T* x, int64_t m, T scale, T r, const T* s, T f, T* top, T* sum) {                 \
    add_row_to_columns<T>(x, m, scale, r, s, f, top, sum);                                                      \
  }                                                                                                             \
  void sinkhorn_plan_row(const T* k, const T* x, const T* s, const T* old, int64_t m, T u, const T* v, T* plan, \
                         double* sums) {                                                                        \
    plan_row<T>(k, x, s, old, m, u, v, plan, sums);                                                             \
  }                                                                                                             \
  double sinkhorn_dot_row(const T* x, const T* y, int64_t m) { return dot_row<T>(x, y, m); }                    \
  double sinkhorn_sum_row(const T* p, int64_t m, double* columns) { return sum_row<T>(p, m, columns); }

GEOWIDTH_DEFINE(float)
GEOWIDTH_DEFINE(double)

}  // namespace geowidth::GEOWIDTH_VARIANT
