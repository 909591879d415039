#include "cpu/diagram_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/double_double.h"
#include "cpu/partial_assignment.h"

namespace geowidth {
namespace {

struct Bar {
  double birth, death;
  double persistence() const { return death - birth; }
  bool operator<(const Bar& other) const {
    return birth < other.birth || (birth == other.birth && death < other.death);
  }
  bool operator==(const Bar& other) const { return birth == other.birth && death == other.death; }
};

using Bars = std::vector<Bar>;

// The bars off the diagonal, sorted.
Bars proper_bars(const Diagram& diagram) {
  Bars bars;
  for (int64_t i = 0; i < diagram.size; ++i) {
    const Bar bar{diagram.bars[2 * i], diagram.bars[2 * i + 1]};
    if (bar.birth < bar.death) bars.push_back(bar);
  }
  std::sort(bars.begin(), bars.end());
  return bars;
}

// Scales both by one power of two that brings the largest persistence near 1, so that no square over- or underflows;
// returns the exponent to scale the distance back by.
int normalise(Bars& a, Bars& b) {
  double largest = 0;
  for (const Bars* bars : {&a, &b})
    for (const Bar& bar : *bars) largest = std::max(largest, bar.death / 2 - bar.birth / 2);
  int exponent = 0;
  std::frexp(largest, &exponent);
  for (Bars* bars : {&a, &b})
    for (Bar& bar : *bars) bar = {std::ldexp(bar.birth, -exponent), std::ldexp(bar.death, -exponent)};
  return exponent;
}

// Squared ground distances, to the precision of Number.
template <typename Number>
struct Costs {
  GroundNorm ground;

  Number pair(const Bar& x, const Bar& y) const {
    const Number birth = square(difference(x.birth, y.birth, Number())),
                 death = square(difference(x.death, y.death, Number()));
    if (ground == GroundNorm::euclidean) return birth + death;
    return birth < death ? death : birth;
  }
  Number diagonal(const Bar& x) const {
    const Number whole = square(difference(x.death, x.birth, Number()));
    return scaled(whole, ground == GroundNorm::sup ? 0.25 : 0.5);
  }
  static double scaled(double a, double power_of_two) { return a * power_of_two; }
  static DoubleDouble scaled(const DoubleDouble& a, double power_of_two) {
    return {a.high * power_of_two, a.low * power_of_two};
  }
};

// Bars whose persistence lies within one octave, sorted by birth: a bar of another diagram within reach of any of them
// is found in a narrow window.
struct Octave {
  double longest;  // distance to the diagonal, squared, of the longest
  std::vector<double> births;
  std::vector<int32_t> index;
};

std::vector<Octave> octaves(const Bars& bars, GroundNorm ground) {
  std::vector<std::pair<int, Octave>> found;
  const Costs<double> costs{ground};
  for (std::size_t j = 0; j < bars.size(); ++j) {
    const int exponent = std::max(-40, std::ilogb(bars[j].persistence()));
    auto place = std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.first == exponent; });
    if (place == found.end()) place = found.insert(found.end(), {exponent, {}});
    Octave& octave = place->second;
    octave.longest = std::max(octave.longest, costs.diagonal(bars[j]));
    octave.births.push_back(bars[j].birth);
    octave.index.push_back(int32_t(j));
  }
  std::vector<Octave> result;
  for (auto& f : found) result.push_back(std::move(f.second));
  return result;
}

// The pairs worth matching: those that cost less than both diagonals together, by how much less.
template <typename Number>
PartialAssignment<Number> worthwhile_pairs(const Bars& a, const Bars& b, const Costs<Number>& costs) {
  const auto groups = octaves(b, costs.ground);
  std::vector<Number> diagonal(b.size());
  std::transform(b.begin(), b.end(), diagonal.begin(), [&](const Bar& bar) { return costs.diagonal(bar); });
  PartialAssignment<Number> problem(a.size(), b.size());
  for (const Bar& bar : a) {
    const Number own = costs.diagonal(bar);
    for (const Octave& octave : groups) {
      const double reach = std::sqrt(rounded(own) + octave.longest) * (1 + 1e-12);
      auto k = std::lower_bound(octave.births.begin(), octave.births.end(), bar.birth - reach) - octave.births.begin();
      for (; k < int64_t(octave.births.size()) && octave.births[k] <= bar.birth + reach; ++k) {
        const int32_t j = octave.index[k];
        const Number gain = costs.pair(bar, b[j]) - own - diagonal[j];
        if (gain < Number(0)) problem.add(j, gain);
      }
    }
    problem.end_row();
  }
  return problem;
}

// What a matching truly costs.
double matching_cost(const Bars& a, const Bars& b, const Costs<DoubleDouble>& costs, const std::vector<int32_t>& partner) {
  std::vector<char> matched(b.size(), 0);
  DoubleDouble total;
  for (std::size_t i = 0; i < a.size(); ++i) {
    total = total + (partner[i] < 0 ? costs.diagonal(a[i]) : costs.pair(a[i], b[partner[i]]));
    if (partner[i] >= 0) matched[partner[i]] = 1;
  }
  for (std::size_t j = 0; j < b.size(); ++j)
    if (!matched[j]) total = total + costs.diagonal(b[j]);
  return rounded(total);
}

struct Solution {
  double cost, uncertainty;  // squared; by how much the cost may exceed the least one
};

template <typename Number>
Solution solve(const Bars& a, const Bars& b, GroundNorm ground) {
  auto problem = worthwhile_pairs<Number>(a, b, {ground});
  const double cost = matching_cost(a, b, {ground}, problem.solve());
  const Costs<double> costs{ground};
  double diagonals = 0;
  for (const Bars* bars : {&a, &b})
    for (const Bar& bar : *bars) diagonals += costs.diagonal(bar);
  return {cost, problem.violation() + 8 * std::numeric_limits<double>::epsilon() * diagonals};
}

}  // namespace

double diagram_distance(const Diagram& first, const Diagram& second, GroundNorm ground) {
  Bars a = proper_bars(first), b = proper_bars(second);
  if (a == b) return 0;
  const int exponent = normalise(a, b);
  Solution best = solve<double>(a, b, ground);
  // Nearly equal diagrams, or a long bar among short ones: what decides drowns in the rounding of the gains.
  if (best.uncertainty > 1e-12 * best.cost) best = solve<DoubleDouble>(a, b, ground);
  return std::ldexp(std::sqrt(best.cost), exponent);
}

}  // namespace geowidth
