// What stands around the matrix products of Gromov-Wasserstein: sums of squares over matched pairs, improving swaps,
// and the check of cost matrices. All sums are formed per row and added up in row order, so the number of threads does
// not change a bit.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

// sum_ik (a[i, k] - b[row[i], column[k]])^2 in float64; T is float or double, a null map means the identity.
template <typename T>
double matched_square_difference(const T* a, int64_t stride_a, const T* b, int64_t stride_b, const int64_t* row,
                                 const int64_t* column, int64_t n, int threads);

enum class Fault : int { none = 0, not_finite = 1, asymmetric = 2 };

// The first cell, in row order, that is not finite; else the first with |c_ij - c_ji| > tolerance * max |c|.
template <typename T>
Fault symmetric_fault(const T* c, int64_t n, int64_t stride, double tolerance, int threads, int64_t* i, int64_t* j);

// Exchanges the partners of two rows wherever that lowers E by more than `least`, until no exchange does or `most` were
// made. `cost` = -(D1 P D2 / n + m1 m2') of permutation P (`column`), kept up to date; d1, d2 are double-centred.
// Exchanging i and j lowers E by (4/n)(cost_ii' - cost_ij' - cost_ji' + cost_jj') + (2/n^2) a_ij b_i'j', where i' is
// the column of i and a_ij = d1_ii + d1_jj - 2 d1_ij, b alike. Returns the number of exchanges.
int64_t improve_by_swaps(const double* d1, const double* d2, double* cost, int64_t* column, int64_t n, double least,
                         int64_t most, int threads);

}  // namespace geowidth

// sum_k (a[k] - b[column[k]])^2 in float64; a null `column` means the identity.
GEOWIDTH_DECLARE(double row_square_difference(const float* a, const float* b, const int64_t* column, int64_t n);
                 double row_square_difference(const double* a, const double* b, const int64_t* column, int64_t n))

// row[k] += scale * (b0[k] - b1[k])
GEOWIDTH_DECLARE(void add_scaled_difference(double* row, double scale, const double* b0, const double* b1, int64_t n))
