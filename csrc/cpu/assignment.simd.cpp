// Row scans of the assignment solver, over float64 rows of any length. See assignment.cpp for what they serve.
#include <cstdint>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

constexpr int64_t lanes = 8;
typedef double Doubles __attribute__((vector_size(64), aligned(8)));
typedef int64_t Integers __attribute__((vector_size(64), aligned(8)));

constexpr double infinity = __builtin_inf();

inline Doubles load(const double* p) { return *reinterpret_cast<const Doubles*>(p); }
inline void store(double* p, Doubles x) { *reinterpret_cast<Doubles*>(p) = x; }
inline Doubles all(double x) { return Doubles{} + x; }

inline double smallest(Doubles x) {
  double least = x[0];
  for (int k = 1; k < lanes; ++k) least = x[k] < least ? x[k] : least;
  return least;
}

}  // namespace

// The smallest and second smallest of cost[j] - dual[j], and the first j of the smallest.
void two_smallest(const double* cost, const double* dual, int64_t n, double* first, double* second, int64_t* index) {
  Doubles low = all(infinity), next = all(infinity);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const Doubles t = load(cost + j) - load(dual + j);
    const Doubles larger = t < low ? low : t;
    low = t < low ? t : low;
    next = larger < next ? larger : next;
  }
  double best = infinity, runner_up = infinity;
  const auto take = [&](double t) {
    if (t < best) {
      runner_up = best;
      best = t;
    } else if (t < runner_up) {
      runner_up = t;
    }
  };
  for (int k = 0; k < lanes; ++k) take(low[k]);
  for (int k = 0; k < lanes; ++k)
    if (next[k] < runner_up) runner_up = next[k];
  for (; j < n; ++j) take(cost[j] - dual[j]);
  int64_t at = 0;
  while (at + 1 < n && cost[at] - dual[at] != best) ++at;
  *first = best;
  *second = runner_up;
  *index = at;
}

// dual[j] = min(dual[j], cost[j] - level) for all j but `home`; true if any was lowered.
bool lower_duals(const double* cost, double level, int64_t home, int64_t n, double slack, double* dual) {
  const double kept = dual[home];
  const Doubles levels = all(level), slacks = all(slack);
  Integers lowered = {};
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const Doubles t = load(cost + j) - levels, old = load(dual + j);
    const Integers lower = t < old - slacks;
    lowered |= lower;
    store(dual + j, lower ? t : old);
  }
  bool any = false;
  for (; j < n; ++j) {
    const double t = cost[j] - level;
    if (t < dual[j] - slack) {
      any = any || j != home;
      dual[j] = t;
    }
  }
  for (int k = 0; k < lanes; ++k) any = any || lowered[k];
  dual[home] = kept;
  return any;
}

// One step of Dijkstra's search from `row`: distance[j] = min(distance[j], cost[j] - dual[j] + shift), with `parent`
// following. Settled columns carry dual -infinity, so that nothing reaches them, and `open` infinity. Returns the
// smallest open distance and its first column.
double relax(const double* cost, const double* dual, double shift, int64_t row, int64_t n, double* open, int64_t* parent,
             int64_t* index) {
  const Doubles shifts = all(shift);
  const Integers rows = Integers{} + row;
  Doubles low = all(infinity);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const Doubles t = (load(cost + j) - load(dual + j)) + shifts, old = load(open + j);
    const Integers nearer = t < old;
    const Doubles now = nearer ? t : old;
    Integers* p = reinterpret_cast<Integers*>(parent + j);
    *p = nearer ? rows : *p;
    store(open + j, now);
    low = now < low ? now : low;
  }
  double least = smallest(low);
  for (; j < n; ++j) {
    const double t = (cost[j] - dual[j]) + shift;
    if (t < open[j]) {
      open[j] = t;
      parent[j] = row;
    }
    least = open[j] < least ? open[j] : least;
  }
  int64_t at = 0;
  while (at + lanes <= n) {
    const Integers same = load(open + at) == all(least);
    int64_t any = 0;
    for (int k = 0; k < lanes; ++k) any |= same[k];
    if (any) break;
    at += lanes;
  }
  while (at + 1 < n && open[at] != least) ++at;
  *index = at;
  return least;
}

}  // namespace geowidth::GEOWIDTH_VARIANT
