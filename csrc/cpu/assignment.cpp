#include "cpu/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/magnitude.h"

namespace geowidth {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int64_t none = -1;

class Solver {
 public:
  Solver(const double* cost, int64_t n, int64_t stride, int64_t* column, double* v, double* u)
      : cost_(cost), n_(n), stride_(stride), column_(column), v_(v), u_(u), owner_(n, none) {}

  AssignmentStatistics run(bool use_duals) {
    start_from_permutation(use_duals);
    for (int pass = 0; pass < 2 && !free_.empty(); ++pass) reduce_rows();
    if (augment_all() && proved()) return statistics_;
    // Duals far larger than the costs of the result hide what those differ by: a start on entries that stand for
    // "forbidden", or a guess from elsewhere. Shortest paths alone, from the columns' smallest costs, make none such.
    start_cold();
    const bool complete = augment_all();
    set_row_duals();
    if (!complete || std::isinf(largest_magnitude(u_, n_)))
      throw std::overflow_error("differences of the costs leave the range of float64; scale them");
    return statistics_;
  }

 private:
  const double* row(int64_t i) const { return cost_ + i * stride_; }

  void set_row_duals() {
    double second;
    int64_t j;
    for (int64_t i = 0; i < n_; ++i) GEOWIDTH_DISPATCH(two_smallest, row(i), v_, n_, u_ + i, &second, &j);
  }

  // Whether the duals prove the assignment optimal, to the rounding of its own costs. Duals of random costs share a
  // constant that grows with n.
  bool proved() {
    set_row_duals();
    const double n = static_cast<double>(n_);
    double size = 0, total = 0, duals = 0, bound = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double own = row(i)[column_[i]];
      size += std::abs(own);
      total += own;
      duals += std::abs(u_[i]) + std::abs(v_[i]);
      bound += u_[i] + v_[i];
    }
    return duals < infinity && duals <= 1024 * n * size &&
           total - bound <= 64 * std::numeric_limits<double>::epsilon() * n * size;
  }

  // The permutation is optimal if and only if v_j - v_home(i) <= c_ij - c_i,home(i) has a solution: the distances of a
  // shortest-path problem without negative cycles. Bellman-Ford sweeps look for them, starting at half the diagonal,
  // which is a solution already when the costs are inner products -<x_i, x_j>. Rows whose home column stays tight keep
  // it; on a negative cycle sweeping never ends, so it stops when it no longer helps.
  void start_from_permutation(bool use_duals) {
    const std::vector<int64_t> home(column_, column_ + n_);
    if (!use_duals)
      for (int64_t i = 0; i < n_; ++i) v_[home[i]] = row(i)[home[i]] / 2;
    double scale = 0;
    for (int64_t i = 0; i < n_; ++i) scale = std::max(scale, std::abs(row(i)[home[i]]));
    const double slack = 4 * std::numeric_limits<double>::epsilon() * scale;
    std::vector<double> before;
    int64_t last = n_ + 1;
    for (int64_t sweep = 0; sweep < most_sweeps; ++sweep) {
      before.assign(v_, v_ + n_);
      int64_t lowered = 0;
      for (int64_t i = 0; i < n_; ++i) {
        const double level = row(i)[home[i]] - v_[home[i]];
        lowered += GEOWIDTH_DISPATCH(lower_duals, row(i), level, home[i], n_, slack, v_);
      }
      ++statistics_.sweeps;
      if (lowered == 0) break;
      if (sweep > 0 && 10 * lowered > 9 * last) {
        std::copy(before.begin(), before.end(), v_);
        break;
      }
      last = lowered;
    }
    keep_tight(home, slack);
    if (64 * statistics_.kept < n_ && !use_duals) start_cold();
  }

  void keep_tight(const std::vector<int64_t>& home, double slack) {
    double first, second;
    int64_t j;
    for (int64_t i = 0; i < n_; ++i) {
      GEOWIDTH_DISPATCH(two_smallest, row(i), v_, n_, &first, &second, &j);
      if (row(i)[home[i]] - v_[home[i]] <= first + slack) {
        owner_[home[i]] = i;
        ++statistics_.kept;
      } else {
        column_[i] = none;
        free_.push_back(i);
      }
    }
  }

  // Column reduction: every column's dual is its smallest cost, and goes to that row if the row is still free.
  void start_cold() {
    statistics_.kept = 0;
    std::fill(v_, v_ + n_, infinity);
    std::vector<int64_t> least(n_, 0);
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < n_; ++j)
        if (row(i)[j] < v_[j]) {
          v_[j] = row(i)[j];
          least[j] = i;
        }
    std::fill(owner_.begin(), owner_.end(), none);
    std::fill(column_, column_ + n_, none);
    free_.clear();
    for (int64_t j = 0; j < n_; ++j)
      if (column_[least[j]] == none) {
        column_[least[j]] = j;
        owner_[j] = least[j];
      }
    for (int64_t i = 0; i < n_; ++i)
      if (column_[i] == none) free_.push_back(i);
  }

  // Augmenting row reduction: a free row takes its best column and lowers that column's dual until its second best is
  // as good; the row that held the column becomes free. The count of steps is bounded, as steps may become tiny.
  void reduce_rows() {
    std::vector<int64_t> waiting(free_.rbegin(), free_.rend()), later;
    int64_t budget = 8 * n_ + 64;
    while (!waiting.empty()) {
      const int64_t i = waiting.back();
      waiting.pop_back();
      if (budget-- <= 0) {
        later.push_back(i);
        continue;
      }
      double first, second;
      int64_t j;
      GEOWIDTH_DISPATCH(two_smallest, row(i), v_, n_, &first, &second, &j);
      const bool strict = first < second && second < infinity;
      if (strict) v_[j] -= second - first;
      const int64_t previous = owner_[j];
      if (previous != none && !strict) {
        later.push_back(i);
        continue;
      }
      owner_[j] = i;
      column_[i] = j;
      if (previous == none) continue;
      column_[previous] = none;
      waiting.push_back(previous);
    }
    free_ = later;
  }

  bool augment_all() {
    statistics_.augmented = static_cast<int64_t>(free_.size());
    open_.resize(n_);
    settled_distance_.resize(n_);
    parent_.resize(n_);
    masked_.assign(v_, v_ + n_);
    return std::all_of(free_.begin(), free_.end(), [&](int64_t i) { return augment(i); });
  }

  // Dijkstra's search over columns from free row `start`, then a flip of the path found. The duals of settled columns
  // move so that the path becomes tight. False if all that is open lies at an infinite distance: sums overflowed.
  bool augment(int64_t start) {
    std::fill(open_.begin(), open_.end(), infinity);
    settled_.clear();
    int64_t i = start, j = none;
    double distance = 0, level = 0;  // level = c_i,column(i) - v_column(i): the dual of row i
    for (;;) {
      distance =
          GEOWIDTH_DISPATCH(relax, row(i), masked_.data(), distance - level, i, n_, open_.data(), parent_.data(), &j);
      if (!(distance < infinity)) return false;
      if (owner_[j] == none) break;
      settled_.push_back(j);
      settled_distance_[j] = distance;
      open_[j] = infinity;
      masked_[j] = -infinity;
      i = owner_[j];
      level = row(i)[j] - v_[j];
    }
    for (int64_t k : settled_) {
      v_[k] += settled_distance_[k] - distance;
      masked_[k] = v_[k];
    }
    while (j != none) {
      i = parent_[j];
      owner_[j] = i;
      std::swap(j, column_[i]);
      if (i == start) break;
    }
    return true;
  }

  static constexpr int64_t most_sweeps = 50;
  const double* cost_;
  int64_t n_, stride_;
  int64_t* column_;
  double *v_, *u_;
  std::vector<int64_t> owner_, free_, settled_, parent_;
  std::vector<double> open_, settled_distance_, masked_;
  AssignmentStatistics statistics_;
};

}  // namespace

AssignmentStatistics solve_assignment(const double* cost, int64_t n, int64_t stride, bool use_duals, int64_t* column,
                                      double* column_dual, double* row_dual) {
  if (n == 0) return {};
  double most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double largest = largest_magnitude(cost + i * stride, n);
    if (std::isinf(largest)) throw std::invalid_argument("row " + std::to_string(i) + " of the costs is not finite");
    most = std::max(most, largest);
  }
  if (use_duals) {
    const double largest = largest_magnitude(column_dual, n);
    if (std::isinf(largest)) throw std::invalid_argument("the column duals are not finite");
    // There are always optimal duals of this size; digits of the costs are lost beside larger ones.
    use_duals = largest <= 4 * static_cast<double>(n) * most;
  }
  return Solver(cost, n, stride, column, column_dual, row_dual).run(use_duals);
}

}  // namespace geowidth
