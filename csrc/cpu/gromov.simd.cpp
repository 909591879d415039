// Row kernels of gromov.cpp.
#include <cstdint>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

constexpr int64_t lanes = 8;
typedef double Doubles __attribute__((vector_size(64), aligned(8)));

inline double total(Doubles x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

template <typename T>
inline double row_square_difference(const T* a, const T* b, const int64_t* column, int64_t n) {
  Doubles sum = {};
  int64_t k = 0;
  for (; k + lanes <= n; k += lanes) {
    Doubles d;
    if (column)
      for (int l = 0; l < lanes; ++l) d[l] = static_cast<double>(a[k + l]) - static_cast<double>(b[column[k + l]]);
    else
      for (int l = 0; l < lanes; ++l) d[l] = static_cast<double>(a[k + l]) - static_cast<double>(b[k + l]);
    sum += d * d;
  }
  double rest = 0;
  for (; k < n; ++k) {
    const double d = static_cast<double>(a[k]) - static_cast<double>(b[column ? column[k] : k]);
    rest += d * d;
  }
  return total(sum) + rest;
}

}  // namespace

double row_square_difference_float(const float* a, const float* b, const int64_t* column, int64_t n) {
  return row_square_difference(a, b, column, n);
}

double row_square_difference_double(const double* a, const double* b, const int64_t* column, int64_t n) {
  return row_square_difference(a, b, column, n);
}

// row[k] += scale * (b0[k] - b1[k])
void add_scaled_difference(double* row, double scale, const double* b0, const double* b1, int64_t n) {
  for (int64_t k = 0; k < n; ++k) row[k] += scale * (b0[k] - b1[k]);
}

}  // namespace geowidth::GEOWIDTH_VARIANT
