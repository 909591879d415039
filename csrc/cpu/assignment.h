// Dense linear assignment in float64: shortest augmenting paths with dual variables (Jonker and Volgenant, "A shortest
// augmenting path algorithm for dense and sparse linear assignment problems", Computing 38, 1987), able to start from a
// permutation that is already nearly right.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

struct AssignmentStatistics {
  int64_t sweeps = 0;     // passes that repaired the duals of the given permutation
  int64_t kept = 0;       // rows that kept the column they came with
  int64_t augmented = 0;  // rows that needed a shortest augmenting path
};

// Minimises sum_i cost[i * stride + column[i]] over permutations of [0, n).
//
// column (n) in: a permutation, the start. Out: the optimal one.
// column_dual (n) in: if `use_duals`, a guess of the column duals. Out: the duals v.
// row_dual (n) out: u_i = min_j (cost_ij - v_j), so u_i + v_j <= cost_ij in float64 up to one rounding, and
// sum(u) + sum(v) is a lower bound of the optimum whatever happened before.
// Equal costs are fine; the result depends on the arguments alone. Start and guess change the time, and which of
// equally cheap permutations is found. Throws std::invalid_argument for costs or guesses that are not finite, and
// std::overflow_error where differences of costs are not.
AssignmentStatistics solve_assignment(const double* cost, int64_t n, int64_t stride, bool use_duals, int64_t* column,
                                      double* column_dual, double* row_dual);

}  // namespace geowidth

// The solver's row scans. The smallest and second smallest of cost[j] - dual[j], and the first j of the smallest.
GEOWIDTH_DECLARE(void two_smallest(const double* cost, const double* dual, int64_t n, double* first, double* second,
                                   int64_t* index))

// dual[j] = min(dual[j], cost[j] - level) for all j but `home`, where that is less by more than `slack`; true if any
// was lowered.
GEOWIDTH_DECLARE(bool lower_duals(const double* cost, double level, int64_t home, int64_t n, double slack,
                                  double* dual))

// One step of Dijkstra's search from `row`: open[j] = min(open[j], cost[j] - dual[j] + shift), with `parent` following.
// Settled columns carry dual -infinity, so that nothing reaches them, and `open` infinity. Returns the smallest open
// distance and, in `index`, its first column.
GEOWIDTH_DECLARE(double relax(const double* cost, const double* dual, double shift, int64_t row, int64_t n,
                              double* open, int64_t* parent, int64_t* index))
