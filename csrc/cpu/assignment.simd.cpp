#include "cpu/assignment.h"

#include "cpu/lanes.h"

namespace geowidth::GEOWIDTH_VARIANT {

constexpr int64_t width = lanes<double>;

void two_smallest(const double* cost, const double* dual, int64_t n, double* first, double* second, int64_t* index) {
  Vector<double> low = infinity, next = infinity;
  int64_t j = 0;
  for (; j + width <= n; j += width) {
    const Vector<double> t = load(cost + j) - load(dual + j);
    const auto lower = t < low;
    next = smaller(choose(lower, low, t), next);
    low = choose(lower, t, low);
  }
  double best = infinity, runner_up = infinity;
  const auto consider = [&](double t) {
    if (t < best) {
      runner_up = best;
      best = t;
    } else if (t < runner_up) {
      runner_up = t;
    }
  };
  double lane[width];
  store(lane, low);
  for (double t : lane) consider(t);
  runner_up = smallest(next, runner_up);
  for (; j < n; ++j) consider(cost[j] - dual[j]);
  int64_t at = 0;
  while (at + 1 < n && cost[at] - dual[at] != best) ++at;
  *first = best;
  *second = runner_up;
  *index = at;
}

bool lower_duals(const double* cost, double level, int64_t home, int64_t n, double slack, double* dual) {
  const double kept = dual[home];
  Vector<int64_t> lowered = {};
  int64_t j = 0;
  for (; j + width <= n; j += width) {
    const Vector<double> t = load(cost + j) - level, old = load(dual + j);
    const auto lower = t < old - slack;
    lowered |= lower;
    store(dual + j, choose(lower, t, old));
  }
  bool found = any(lowered);
  for (; j < n; ++j) {
    const double t = cost[j] - level;
    if (t < dual[j] - slack) {
      found = found || j != home;
      dual[j] = t;
    }
  }
  dual[home] = kept;
  return found;
}

double relax(const double* cost, const double* dual, double shift, int64_t row, int64_t n, double* open,
             int64_t* parent, int64_t* index) {
  const Vector<int64_t> rows = row;
  Vector<double> low = infinity;
  int64_t j = 0;
  for (; j + width <= n; j += width) {
    const Vector<double> t = (load(cost + j) - load(dual + j)) + shift, old = load(open + j);
    const auto nearer = t < old;
    const Vector<double> now = choose(nearer, t, old);
    store(parent + j, choose(nearer, rows, load(parent + j)));
    store(open + j, now);
    low = smaller(now, low);
  }
  double least = smallest(low, infinity);
  for (; j < n; ++j) {
    const double t = (cost[j] - dual[j]) + shift;
    if (t < open[j]) {
      open[j] = t;
      parent[j] = row;
    }
    least = open[j] < least ? open[j] : least;
  }
  int64_t at = 0;
  while (at + width <= n && !any(load(open + at) == least)) at += width;
  while (at + 1 < n && open[at] != least) ++at;
  *index = at;
  return least;
}

}  // namespace geowidth::GEOWIDTH_VARIANT
