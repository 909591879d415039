// The exact 2-Wasserstein distance between persistence diagrams of finite bars.
#pragma once

#include <cstdint>

namespace geowidth {

struct Diagram {
  const double* bars;  // (birth, death) one after the other, finite, birth <= death
  int64_t size;
};

enum class GroundNorm { sup, euclidean };

// sqrt of the least sum of squared ground distances over all partial matchings, an unmatched bar paying its distance to
// the diagonal. Exactly 0 for diagrams equal up to order and bars on the diagonal. partner (a.size) out: the bar of b
// that each bar of a is matched to, or -1.
double diagram_distance(const Diagram& a, const Diagram& b, GroundNorm ground, int64_t* partner);

}  // namespace geowidth
