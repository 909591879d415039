// Launches of what stands around the matrix products of Gromov-Wasserstein on a GPU: centring, sums of squares over
// matched pairs, the check of cost matrices, the proof that a permutation is optimal, and the search for an exchange
// that helps. Torch-free, host code only. Every pointer lies in device memory; every call enqueues its kernels on
// `stream` and returns, and throws std::runtime_error if CUDA refuses a launch. n is at least 1. Matrices are given
// with their row stride in elements; rows that start at multiples of 16 bytes are read 16 bytes at a time, with the
// same sums bit for bit. Sums are float64 in an order that depends on n alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace geowidth {
namespace cuda {

constexpr int most_tile_blocks = 1024;
constexpr int64_t tile_scratch = 2 * most_tile_blocks;  // doubles

// out (2): the largest |c_ij|, infinite if an entry is not finite, and the largest |c_ij - c_ji|. scratch
// (tile_scratch). Reads c once.
template <typename T>
void symmetry(const T* c, int64_t stride, int64_t n, double* scratch, double* out, cudaStream_t stream);

// The double centring of a symmetric matrix. means (n): row means; centred_means (n): those less the grand mean;
// squares (n): row sums of c_ij^2; d (n, n), contiguous: (c_ij - means_i) - centred_means_j; scratch (3 n);
// out (5): grand mean, sum of centred_means^2, sum of d^2, the least entry of c, the largest |c_ii|.
// Reads c twice, writes d once.
template <typename T>
void centre(const T* c, int64_t stride, int64_t n, double* means, double* centred_means, double* squares, double* d,
            double* scratch, double* out, cudaStream_t stream);

// out (1): sum_ik (a[i, k] - b[row[i], column[k]])^2; a null map is the identity. scratch (n).
template <typename T>
void square_difference(const T* a, int64_t stride_a, const T* b, int64_t stride_b, const int64_t* row,
                       const int64_t* column, int64_t n, double* scratch, double* out, cudaStream_t stream);

constexpr int most_sweeps = 16;

// Whether the permutation `home` is an assignment of least cost, by dual variables: u_i + v_j <= cost_ij with equality
// at j = home_i. Half the own costs are tried first (right where costs are inner products -<x_i, x_j>), then repaired
// by Bellman-Ford sweeps over the rows: u_i = min_j (cost_ij - v_j), v_home(i) = cost_i,home(i) - u_i, until a sweep
// lowers no u_i by more than rounding. A sweep reads the cost once; those after the last needed one read nothing.
// row_minima (n): min_j (cost_ij - v_j) for the v of that sweep. v (2, n): which of the two, out says. scratch (2 n).
// lowered (most_sweeps): rows lowered in each sweep.
// out (3): the sweep that lowered none, -1 if none did; the sum of own costs; sum(row_minima) + sum(v), a lower bound
// of every assignment's cost. v is v[out[0] % 2].
void certificate(const double* cost, int64_t stride, int64_t n, const int64_t* home, double* row_minima, double* v,
                 double* scratch, unsigned* lowered, double* out, cudaStream_t stream);

// out (1): the largest decrease of E by an exchange of two partners of permutation `column` (csrc/cpu/gromov.h has the
// formula). d1, d2, cost: (n, n), contiguous. own_i = cost_i,column(i); square1_i = d1_ii;
// square2_i = d2_column(i),column(i). scratch (tile_scratch). -infinity for n = 1.
void best_exchange(const double* d1, const double* d2, const double* cost, const int64_t* column, const double* own,
                   const double* square1, const double* square2, int64_t n, double* scratch, double* out,
                   cudaStream_t stream);

}  // namespace cuda
}  // namespace geowidth
