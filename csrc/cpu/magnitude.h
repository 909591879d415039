// The largest magnitude in a row of numbers, which also says whether all are finite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace geowidth {

// max |values|, 0 for none; infinite if one is infinite or NaN.
template <typename T>
double largest_magnitude(const T* values, int64_t n) {
  constexpr int lanes = 16;              // sums of their own, for the compiler to keep in vectors
  T most[lanes] = {}, zero[lanes] = {};  // x * 0 is NaN exactly for the values that are not finite
  int64_t k = 0;
  for (; k + lanes <= n; k += lanes)
    for (int l = 0; l < lanes; ++l) {
      zero[l] += values[k + l] * 0;
      most[l] = std::max(most[l], std::abs(values[k + l]));
    }
  for (; k < n; ++k) {
    zero[0] += values[k] * 0;
    most[0] = std::max(most[0], std::abs(values[k]));
  }
  for (int l = 1; l < lanes; ++l) {
    zero[0] += zero[l];
    most[0] = std::max(most[0], most[l]);
  }
  return zero[0] == 0 ? static_cast<double>(most[0]) : std::numeric_limits<double>::infinity();
}

}  // namespace geowidth
