// Entropic optimal transport between positive weights a (n) and b (m): the coupling of the form u_i K_ij v_j with
// K_ij = exp(scale * (x_ij + r_i s_j) + f_i + g_j). The iterations are Sinkhorn's, run on K itself (one visit of K does
// both half steps) with Anderson acceleration of log v; whenever v leaves a safe range it is absorbed into the
// potentials f, g and K is formed anew; the log domain serves only to enter from potentials that do not fit.
//
// Column sums are formed per slab of rows and added up in slab order, a fixed number of slabs for given n: the result
// does not depend on the number of threads. T is float or double; all matrices are dense, row-major, without gaps.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

// The log-kernel scale * (x_ij + r_i s_j).
template <typename T>
struct LogKernel {
  const T* x;  // (n, m)
  const T* r;  // (n)
  const T* s;  // (m)
  T scale;
  int64_t n, m;
};

struct SinkhornSettings {
  double tolerance;  // on sum_j |column sum - b_j|; row sums are exact
  int64_t most;      // visits of the kernel
  int memory;        // of the acceleration; 0 = plain Sinkhorn
  int threads;
};

struct SinkhornOutcome {
  double error = 0;         // sum_j |column sum - b_j| of the coupling returned
  int64_t passes = 0;       // visits of the kernel
  int64_t entries = 0;      // times the kernel was formed
  int64_t log_entries = 0;  // of these, by way of the log domain
};

// f (n), g (m) in: potentials to start from; out: those of the coupling (log u and log v absorbed).
// k (n, m), u (n), v (m) out: the coupling is u_i k_ij v_j.
template <typename T>
SinkhornOutcome sinkhorn(const LogKernel<T>& kernel, const T* a, const T* b, T* f, T* g, T* k, T* u, T* v,
                         const SinkhornSettings& settings);

struct PlanSums {
  double change = 0;  // sum |plan - old|
  double inner = 0;   // sum x * plan
  double linear = 0;  // sum r_i s_j plan_ij
};

// plan_ij = u_i k_ij v_j, what `sinkhorn` left. plan may be k or old.
template <typename T>
PlanSums form_plan(const LogKernel<T>& kernel, const T* k, const T* u, const T* v, const T* old, T* plan, int threads);

// sum_ij x_ij y_ij in double.
template <typename T>
double inner_product(const T* x, const T* y, int64_t n, int64_t m, int threads);

// Row sums (n) and column sums (m) of x in double.
template <typename T>
void marginals(const T* x, int64_t n, int64_t m, double* rows, double* columns, int threads);

}  // namespace geowidth

// Row kernels, for float and for double. m is the length of a row.
//
// pass         u_i = a_i / (k v)_i for `rows` rows of k, and c = their column sums k' u.
// kernel_row   k_j = exp(scale * (x_j + r s_j) + f + g_j)
// row_log_sum  log sum_j exp(scale * (x_j + r s_j) + g_j)
// add_row      logarithmic column sums top + log(sum) take in one more row, exponents scale * (x_j + r s_j) + f.
// plan_row     plan_j = u k_j v_j, and sums[0] = sum |plan_j - old_j|, [1] = sum x_j plan_j, [2] = sum s_j plan_j.
// dot_row      sum_j x_j y_j
// sum_row      the row's sum; columns[j] += p[j].
#define GEOWIDTH_SINKHORN_ROWS(T)                                                                               \
  void sinkhorn_pass(const T* k, int64_t rows, int64_t m, const T* a, const T* v, T* u, T* c);                  \
  void sinkhorn_kernel_row(const T* x, int64_t m, T scale, T r, const T* s, T f, const T* g, T* k);             \
  T sinkhorn_row_log_sum(const T* x, int64_t m, T scale, T r, const T* s, const T* g);                          \
  void sinkhorn_add_row(const T* x, int64_t m, T scale, T r, const T* s, T f, T* top, T* sum);                  \
  void sinkhorn_plan_row(const T* k, const T* x, const T* s, const T* old, int64_t m, T u, const T* v, T* plan, \
                         double* sums);                                                                         \
  double sinkhorn_dot_row(const T* x, const T* y, int64_t m);                                                   \
  double sinkhorn_sum_row(const T* p, int64_t m, double* columns)
GEOWIDTH_DECLARE(GEOWIDTH_SINKHORN_ROWS(float); GEOWIDTH_SINKHORN_ROWS(double))
#undef GEOWIDTH_SINKHORN_ROWS
