#include "cpu/gromov.h"

#include "cpu/lanes.h"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

template <typename T>
GEOWIDTH_INLINE inline Vector<double> gather(const T* p, const int64_t* place) {
  double x[lanes<double>];
  for (int64_t l = 0; l < lanes<double>; ++l) x[l] = static_cast<double>(p[place[l]]);
  return load(x);
}

template <typename T>
inline double square_difference(const T* a, const T* b, const int64_t* column, int64_t n) {
  Vector<double> sum = {};
  int64_t k = 0;
  for (; k + lanes<double> <= n; k += lanes<double>) {
    const Vector<double> other = column ? gather(b, column + k) : load_as<double>(b + k);
    const Vector<double> d = load_as<double>(a + k) - other;
    sum += d * d;
  }
  double rest = 0;
  for (; k < n; ++k) {
    const double d = static_cast<double>(a[k]) - static_cast<double>(b[column ? column[k] : k]);
    rest += d * d;
  }
  return tree_total(sum) + rest;
}

}  // namespace

double row_square_difference(const float* a, const float* b, const int64_t* column, int64_t n) {
  return square_difference(a, b, column, n);
}

double row_square_difference(const double* a, const double* b, const int64_t* column, int64_t n) {
  return square_difference(a, b, column, n);
}

void add_scaled_difference(double* row, double scale, const double* b0, const double* b1, int64_t n) {
  for (int64_t k = 0; k < n; ++k) row[k] += scale * (b0[k] - b1[k]);
}

}  // namespace geowidth::GEOWIDTH_VARIANT
