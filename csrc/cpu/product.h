// A float64 product of square matrices with what follows it in Gromov-Wasserstein, by the kernel of the distances' Gram
// matrix.
#pragma once

#include <cstdint>

namespace geowidth {

// out[i, j] = scale * sum_k a[i, k] b[row[k], j] - u[i] v[j]; all contiguous, (n, n) and (n). A null row is the
// identity. An entry is one accumulator over k in order: its bits do not depend on the threads. Throws std::bad_alloc
// if there is no memory for two packed matrices.
void scaled_product(const double* a, const double* b, const int64_t* row, const double* u, const double* v,
                    double scale, int64_t n, double* out, int threads);

// Whether scaled_product outruns the usual libraries' product here: with AVX-512 on processors that are not Intel's,
// for which MKL keeps to AVX2.
bool own_product_pays();

}  // namespace geowidth
