// Dense linear assignment in float64: shortest augmenting paths with dual variables (Jonker and Volgenant, "A shortest
// augmenting path algorithm for dense and sparse linear assignment problems", Computing 38, 1987), able to start from a
// permutation that is already nearly right.
#pragma once

#include <cstdint>

namespace geowidth {

struct AssignmentStatistics {
  int64_t sweeps = 0;      // passes that repaired the duals of the given permutation
  int64_t kept = 0;        // rows that kept the column they came with
  int64_t augmented = 0;   // rows that needed a shortest augmenting path
};

// Minimises sum_i cost[i * stride + column[i]] over permutations of [0, n).
//
// column (n) in: a permutation, the start. Out: the optimal one.
// column_dual (n) in: if `use_duals`, a guess of the column duals. Out: the duals v.
// row_dual (n) out: u_i = min_j (cost_ij - v_j), so u_i + v_j <= cost_ij in float64 up to one rounding, and
// sum(u) + sum(v) is a lower bound of the optimum whatever happened before.
// Equal costs are fine; the result depends on the arguments alone. Start and guess change the time, and which of equally
// cheap permutations is found. Throws std::invalid_argument for costs or guesses that are not finite, and
// std::overflow_error where differences of costs are not.
AssignmentStatistics solve_assignment(const double* cost, int64_t n, int64_t stride, bool use_duals, int64_t* column,
                                      double* column_dual, double* row_dual);

}  // namespace geowidth
