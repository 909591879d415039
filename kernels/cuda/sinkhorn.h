// Launch declarations of the Sinkhorn iterations: torch-free, host code only. What they compute: csrc/cpu/sinkhorn.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace geowidth {
namespace cuda {

// How a solve is spread over the device: decided by its size and the device, the same for every launch.
struct SinkhornShape {
  int64_t stride;        // columns of a kernel row with its padding, which holds zeros
  int64_t rows, blocks;  // a block owns `rows` rows in a run
  int64_t resident;      // of these the first so many stay in shared memory
  int64_t share;         // columns a block adds up
  int threads, packs;    // of a block; 16-byte pieces of a row a thread keeps in registers (0: rows too wide for that)
  size_t shared_bytes;
  size_t workspace_bytes;
};

// Everything lies in device memory; matrices are dense but for the kernel's stride.
template <typename T>
struct SinkhornArguments {
  const T *x, *r, *s;  // the log-kernel scale (x_ij + r_i s_j): (n, m), (n), (m)
  T scale;
  int64_t n, m;
  const T *a, *b;            // (n), (m): positive marginals
  T *f, *g;                  // (n), (m): potentials in and out
  T* kernel;                 // (n, stride): rows that are not resident; contents are lost
  unsigned char* workspace;  // workspace_bytes, 16-byte aligned; carries the coupling from the solve to form_plan
  double* outcome;           // (8): error, visits, times formed, by way of the log domain, sum |plan - old|,
                             // r' plan s, sum x plan, f'a + g'b
};

struct SinkhornSettings {
  double tolerance;  // on sum_j |column sum - b_j|; below 0: exactly `most` visits, whatever they bring (for timing)
  int64_t most;      // visits of the kernel
  int memory;        // of Anderson's acceleration, at most 5; 0 = plain Sinkhorn
};

// resident: at most so many rows of a block in shared memory; below 0: as many as fit.
template <typename T>
SinkhornShape sinkhorn_shape(int64_t n, int64_t m, int64_t resident);

// The whole inner solve in one launch; outcome[0..3].
template <typename T>
void sinkhorn_solve(const SinkhornArguments<T>& arguments, const SinkhornSettings& settings, int64_t resident,
                    cudaStream_t stream);

// plan = the coupling `sinkhorn_solve` left in the workspace; outcome[4..7]. plan may be old.
template <typename T>
void sinkhorn_plan(const SinkhornArguments<T>& arguments, const T* old, T* plan, int64_t resident, cudaStream_t stream);

// out[0] = sum_ij x_ij y_ij over `count` entries, in double; scratch: (inner_product_scratch) doubles.
constexpr int64_t inner_product_scratch = 1024;
template <typename T>
void inner_product(const T* x, const T* y, int64_t count, double* scratch, double* out, cudaStream_t stream);

}  // namespace cuda
}  // namespace geowidth
