#include "cpu/diagram_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/bar_tree.h"
#include "cpu/double_double.h"
#include "cpu/partial_assignment.h"

namespace geowidth {
namespace {

// The bars off the diagonal, sorted, and where each stood.
struct SortedBars {
  Bars bars;
  std::vector<int64_t> place;
};

SortedBars proper_bars(const Diagram& diagram) {
  const auto bar = [&](int64_t i) { return Bar{diagram.bars[2 * i], diagram.bars[2 * i + 1]}; };
  SortedBars sorted;
  for (int64_t i = 0; i < diagram.size; ++i)
    if (bar(i).birth < bar(i).death) sorted.place.push_back(i);
  std::stable_sort(sorted.place.begin(), sorted.place.end(), [&](int64_t i, int64_t j) { return bar(i) < bar(j); });
  for (int64_t i : sorted.place) sorted.bars.push_back(bar(i));
  return sorted;
}

// Scales both by one power of two that brings the largest persistence near 1, so that no square over- or underflows;
// returns the exponent to scale the distance back by.
int normalise(Bars& a, Bars& b) {
  double largest = std::numeric_limits<double>::denorm_min();  // whose half is 0
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

// By how much matching two bars costs less than leaving both to the diagonal, as a negative number.
template <typename Number>
struct Gains {
  Gains(const Bars& a, const Bars& b, GroundNorm ground) : a(a), b(b), costs{ground} {
    for (const Bar& bar : a) own.push_back(costs.diagonal(bar));
    for (const Bar& bar : b) other.push_back(costs.diagonal(bar));
  }
  Number operator()(int32_t i, int32_t j) const { return costs.pair(a[i], b[j]) - own[i] - other[j]; }

  const Bars &a, &b;
  Costs<Number> costs;
  std::vector<Number> own, other;  // costs of the diagonal
};

// The best matching of two diagrams. Pairs with a gain may be a large part of all pairs, but those of the best matching
// are near each other: so the nearest are tried first, and then, as long as there are any, pairs that the potentials
// found so far say could improve on it. When there are none, the potentials prove the matching best among all pairs.
template <typename Number>
class Matching {
 public:
  Matching(const Bars& a, const Bars& b, GroundNorm ground)
      : gains_(a, b, ground), tree_(b, ground), problem_(a.size(), b.size()), complete_(a.size(), 0) {
    add_nearest();
    solve();
  }
  // Begins with what coarser arithmetic found.
  template <typename Coarser>
  explicit Matching(const Matching<Coarser>& coarser)
      : gains_(coarser.gains_.a, coarser.gains_.b, coarser.gains_.costs.ground), tree_(coarser.tree_),
        problem_(coarser.problem_, gains_), complete_(coarser.complete_.size(), 0) {
    solve();
  }

  int32_t partner(std::size_t i) const { return problem_.column_of(int32_t(i)); }
  double violation() const { return problem_.violation(); }

 private:
  template <typename>
  friend class Matching;
  static constexpr std::size_t first_partners = 16, more_partners = 8;  // of a bar, looked up at a time

  // Adds the nearest bars that each bar of the first diagram gains by.
  void add_nearest() {
    std::vector<double> room(gains_.b.size());
    std::transform(gains_.other.begin(), gains_.other.end(), room.begin(), [](const Number& x) { return rounded(x); });
    tree_.weigh(room);
    for (int32_t i = 0; i < int32_t(gains_.a.size()); ++i) {
      tree_.nearest(gains_.a[i], rounded(gains_.own[i]), first_partners, i, found_);
      complete_[i] = found_.size() < first_partners;
      for (const auto& f : found_)
        if (const Number gain = gains_(i, f.index); gain < Number(0)) problem_.add(i, f.index, gain);
    }
  }

  void solve() {
    // Short bars first: their searches end soon, and what they settle stays out of the way of the long ones.
    std::vector<int32_t> order(gains_.a.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t x, int32_t y) { return gains_.a[x].persistence() < gains_.a[y].persistence(); });
    do problem_.solve(order);
    while (add_promising());
  }

  // Adds pairs whose gain is below the sum of their potentials; whether there were any.
  bool add_promising() {
    constexpr double margin = 16 * std::numeric_limits<double>::epsilon();  // of the search, which decides nothing
    std::vector<double> room(gains_.b.size());
    for (std::size_t j = 0; j < room.size(); ++j)
      room[j] = rounded(gains_.other[j] + column_potential(int32_t(j))) + margin * rounded(gains_.other[j]);
    tree_.weigh(room);
    std::vector<int32_t> known(room.size(), -1);
    bool any = false;
    for (int32_t i = 0; i < int32_t(gains_.a.size()); ++i) {
      if (complete_[i]) continue;
      problem_.for_each_column(i, [&](int32_t j) { known[j] = i; });
      const Number& potential = problem_.potential(problem_.rows, i);
      const auto promises = [&](int32_t j) { return known[j] != i && gains_(i, j) < potential + column_potential(j); };
      const double own_room = rounded(gains_.own[i] + potential) + margin * rounded(gains_.own[i]);
      tree_.lowest(gains_.a[i], own_room, more_partners, i, promises, found_);
      for (const auto& f : found_) problem_.add(i, f.index, gains_(i, f.index));
      any = any || !found_.empty();
    }
    return any;
  }

  const Number& column_potential(int32_t j) const { return problem_.potential(problem_.columns, j); }

  Gains<Number> gains_;
  BarTree tree_;  // of b
  PartialAssignment<Number> problem_;
  std::vector<char> complete_;  // of a: whether all bars that gain by it are entries already
  std::vector<BarTree::Found> found_;
};

// What a matching truly costs.
template <typename Number>
double matching_cost(const Bars& a, const Bars& b, const Costs<DoubleDouble>& costs, const Matching<Number>& matching) {
  std::vector<char> matched(b.size(), 0);
  DoubleDouble total;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const int32_t j = matching.partner(i);
    total = total + (j < 0 ? costs.diagonal(a[i]) : costs.pair(a[i], b[j]));
    if (j >= 0) matched[j] = 1;
  }
  for (std::size_t j = 0; j < b.size(); ++j)
    if (!matched[j]) total = total + costs.diagonal(b[j]);
  return rounded(total);
}

// By how much, at most, the cost of a matching may exceed the least one.
template <typename Number>
double uncertainty(const Bars& a, const Bars& b, const Costs<double>& costs, const Matching<Number>& matching) {
  double diagonals = 0;
  for (const Bars* bars : {&a, &b})
    for (const Bar& bar : *bars) diagonals += costs.diagonal(bar);
  return matching.violation() + 8 * std::numeric_limits<double>::epsilon() * diagonals;
}

}  // namespace

double diagram_distance(const Diagram& first, const Diagram& second, GroundNorm ground, int64_t* partner) {
  SortedBars a = proper_bars(first), b = proper_bars(second);
  std::fill(partner, partner + first.size, -1);
  const auto match = [&](std::size_t i, int64_t j) { partner[a.place[i]] = j < 0 ? -1 : b.place[j]; };
  if (a.bars == b.bars) {
    for (std::size_t i = 0; i < a.bars.size(); ++i) match(i, int64_t(i));
    return 0;
  }
  const int exponent = normalise(a.bars, b.bars);
  const auto distance = [&](const auto& matching, double cost) {
    for (std::size_t i = 0; i < a.bars.size(); ++i) match(i, matching.partner(i));
    return std::ldexp(std::sqrt(cost), exponent);
  };
  const Matching<double> matching(a.bars, b.bars, ground);
  const double cost = matching_cost(a.bars, b.bars, {ground}, matching);
  if (uncertainty(a.bars, b.bars, {ground}, matching) <= 1e-12 * cost) return distance(matching, cost);
  // Nearly equal diagrams, or a long bar among short ones: what decides drowns in the rounding of the gains.
  const Matching<DoubleDouble> finer(matching);
  return distance(finer, matching_cost(a.bars, b.bars, {ground}, finer));
}

}  // namespace geowidth
