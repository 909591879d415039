// What the kernels of a Sinkhorn step work on, and where it lies in the workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "sinkhorn.h"
#include "sinkhorn_visit.h"

namespace geowidth {
namespace cuda {

constexpr int most_memory = 5, history = most_memory + 1;
constexpr int most_products = most_memory * (most_memory + 1) / 2 + most_memory;  // for the weights of a mixed step
constexpr int sums = 3 + most_products;           // error, bad sums, potentials out of range; then the products
constexpr int plan_blocks = 1024, plan_sums = 4;  // of form_plan: what a block leaves for the last one

template <typename T>
struct Work {
  const T *x, *r, *s;
  T scale;
  int64_t n, m, stride, rows, resident, share;
  const T *a, *b;
  T *f, *g, *kernel;
  // In the workspace. (n): u and f as the kernel was formed with; (stride): v, g likewise, two v to take turns.
  T *u, *v, *formed_f, *formed_g, *turns[2];
  T *partial, *top;      // (blocks, stride): column sums of each block; in the log domain with their largest exponents
  double *log_v, *best;  // (m): the state of this visit; of the best one
  double *images, *residuals;  // (history, m): log(b / column sum), and its difference to log v
  double* scalars;             // (sums + 1, blocks); the last: a mixed step went too far
  unsigned* arrived;           // of the grid's barrier
  double* plan_partial;        // (plan_sums, plan_blocks)
  double* outcome;
  double tolerance;
  int64_t most;
  int memory;
  bool aligned;  // x may be read 16 bytes at a time
};

// Hands out the workspace's parts in order, each aligned to 256 bytes; with no memory it only counts.
class Carver {
 public:
  explicit Carver(unsigned char* memory) : memory_(memory) {}

  template <typename T>
  void take(T*& part, int64_t count) {
    part = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  }

  size_t used() const { return used_; }

 private:
  unsigned char* memory_;
  size_t used_ = 0;
};

// Fills in the workspace's parts; returns their size.
template <typename T>
size_t carve(Work<T>& w, int64_t blocks, unsigned char* memory) {
  Carver carver(memory);
  carver.take(w.arrived, 1);
  carver.take(w.u, w.n);
  carver.take(w.v, w.stride);
  carver.take(w.formed_f, w.n);
  carver.take(w.formed_g, w.stride);
  carver.take(w.turns[0], w.stride);
  carver.take(w.turns[1], w.stride);
  carver.take(w.partial, blocks * w.stride);
  carver.take(w.top, blocks * w.stride);
  carver.take(w.log_v, w.m);
  carver.take(w.best, w.m);
  carver.take(w.images, history * w.m);
  carver.take(w.residuals, history * w.m);
  carver.take(w.scalars, (sums + 1) * blocks);
  carver.take(w.plan_partial, plan_sums * plan_blocks);
  return carver.used();
}

template <typename T>
Work<T> work_of(const SinkhornArguments<T>& arguments, const SinkhornShape& shape) {
  Work<T> w{};
  w.x = arguments.x;
  w.r = arguments.r;
  w.s = arguments.s;
  w.scale = arguments.scale;
  w.n = arguments.n;
  w.m = arguments.m;
  w.stride = shape.stride;
  w.rows = shape.rows;
  w.resident = shape.resident;
  w.share = shape.share;
  w.a = arguments.a;
  w.b = arguments.b;
  w.f = arguments.f;
  w.g = arguments.g;
  w.kernel = arguments.kernel;
  w.outcome = arguments.outcome;
  carve(w, shape.blocks, arguments.workspace);
  return w;
}

}  // namespace cuda
}  // namespace geowidth
