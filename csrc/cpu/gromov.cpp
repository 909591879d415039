#include "cpu/gromov.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/magnitude.h"
#include "cpu/thread_pool.h"

namespace geowidth {
namespace {

constexpr int64_t tile = 64;

}  // namespace

template <typename T>
double matched_square_difference(const T* a, int64_t stride_a, const T* b, int64_t stride_b, const int64_t* row,
                                 const int64_t* column, int64_t n, int threads) {
  std::vector<double> rows(n);
  parallel_for(n, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      rows[i] =
          GEOWIDTH_DISPATCH(row_square_difference, a + i * stride_a, b + (row ? row[i] : i) * stride_b, column, n);
  });
  double sum = 0;
  for (double r : rows) sum += r;
  return sum;
}

template <typename T>
Fault symmetric_fault(const T* c, int64_t n, int64_t stride, double tolerance, int threads, int64_t* i, int64_t* j) {
  std::vector<double> largest(n);
  parallel_for(n, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) largest[r] = largest_magnitude(c + r * stride, n);
  });
  double scale = 0;
  for (int64_t r = 0; r < n; ++r) {
    if (std::isinf(largest[r])) {
      *i = r;
      *j = 0;
      while (std::isfinite(c[r * stride + *j])) ++*j;
      return Fault::not_finite;
    }
    scale = std::max(scale, largest[r]);
  }
  const double allowed = tolerance * scale;
  const int64_t tiles = (n + tile - 1) / tile;
  std::vector<int64_t> first(n, n);  // of each row, the first asymmetric column right of the diagonal
  parallel_for(tiles, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t k0 = t * tile; k0 < n; k0 += tile)
        for (int64_t r = t * tile; r < std::min(n, (t + 1) * tile); ++r)
          for (int64_t k = std::max(k0, r + 1); k < std::min(n, k0 + tile); ++k)
            if (std::abs(static_cast<double>(c[r * stride + k]) - static_cast<double>(c[k * stride + r])) > allowed)
              first[r] = std::min(first[r], k);
  });
  for (int64_t r = 0; r < n; ++r)
    if (first[r] < n) {
      *i = r;
      *j = first[r];
      return Fault::asymmetric;
    }
  return Fault::none;
}

int64_t improve_by_swaps(const double* d1, const double* d2, double* cost, int64_t* column, int64_t n, double least,
                         int64_t most, int threads) {
  const double linear = 4.0 / n, square = 2.0 / (static_cast<double>(n) * n);
  std::vector<double> own(n);  // cost_ii'
  const auto refresh = [&] {
    for (int64_t i = 0; i < n; ++i) own[i] = cost[i * n + column[i]];
  };
  const auto gain = [&](int64_t i, int64_t j) {
    const int64_t p = column[i], q = column[j];
    const double slope = own[i] - cost[i * n + q] - cost[j * n + p] + own[j];
    const double a = d1[i * n + i] + d1[j * n + j] - 2 * d1[i * n + j];
    const double b = d2[p * n + p] + d2[q * n + q] - 2 * d2[p * n + q];
    return linear * slope + square * a * b;
  };
  const auto exchange = [&](int64_t i, int64_t j) {
    const double* b0 = d2 + column[i] * n;
    const double* b1 = d2 + column[j] * n;
    parallel_for(n, 64, threads, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        GEOWIDTH_DISPATCH(add_scaled_difference, cost + r * n, (d1[r * n + i] - d1[r * n + j]) / n, b0, b1, n);
    });
    std::swap(column[i], column[j]);
    refresh();
  };
  refresh();
  int64_t made = 0, clean = 0;  // clean = pairs of tiles in a row without an exchange
  const int64_t tiles = (n + tile - 1) / tile, all = tiles * (tiles + 1) / 2;
  while (clean < all && made < most)
    for (int64_t s = 0; s < tiles && clean < all; ++s)
      for (int64_t t = s; t < tiles && clean < all; ++t) {
        ++clean;
        for (int64_t i = s * tile; i < std::min(n, (s + 1) * tile); ++i)
          for (int64_t j = std::max(t * tile, i + 1); j < std::min(n, (t + 1) * tile); ++j)
            if (made < most && gain(i, j) > least) {
              exchange(i, j);
              ++made;
              clean = 0;
            }
      }
  return made;
}

template double matched_square_difference<float>(const float*, int64_t, const float*, int64_t, const int64_t*,
                                                 const int64_t*, int64_t, int);
template double matched_square_difference<double>(const double*, int64_t, const double*, int64_t, const int64_t*,
                                                  const int64_t*, int64_t, int);
template Fault symmetric_fault<float>(const float*, int64_t, int64_t, double, int, int64_t*, int64_t*);
template Fault symmetric_fault<double>(const double*, int64_t, int64_t, double, int, int64_t*, int64_t*);

}  // namespace geowidth
