// Anderson acceleration of a fixed-point iteration x -> y(x) on vectors: the next x is the affine combination of the
// last images whose residual y - x is smallest (Walker, Ni, "Anderson acceleration for fixed-point iterations", SIAM J.
// Numer. Anal. 49, 2011). With memory 0, or while it has nothing to go by, it is the plain step x = y.
#pragma once

#include <cstdint>
#include <vector>

namespace geowidth {

class Anderson {
 public:
  Anderson(int64_t size, int memory) : size_(size), memory_(memory) {}

  // Replaces x by the next point, given its image y.
  void step(std::vector<double>& x, const std::vector<double>& y);

  // Drops the history; the next step is plain.
  void forget();

 private:
  bool weights(std::vector<double>& weight) const;

  int64_t size_;
  int memory_;
  int64_t steps_ = 0;
  std::vector<std::vector<double>> images_, residuals_;  // oldest first
};

}  // namespace geowidth
