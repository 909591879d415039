// What the blocks of a Sinkhorn solve share, and what its leader decides after a visit. Every block's first thread
// takes the same decision from the same numbers, in the order csrc/cpu/sinkhorn.cpp takes it.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "sinkhorn_work.h"

namespace geowidth {
namespace cuda {

constexpr int64_t patience = 30;  // visits without a smaller error: rounding is all that is left
constexpr int most_entries = 60;
constexpr int plain_steps = 2;            // before the first combination: early differences say little
constexpr double ridge = 1e-10;           // relative, against nearly parallel differences
constexpr double longest_correction = 8;  // of any log v: further than that the model is not to be trusted

enum class Action { plain, mixed, restore, absorb, enter, done };

struct Control {
  double error, best_error, previous;
  double weight[most_memory];
  int64_t passes, best_pass, entries, log_entries;
  int attempt, steps, held, current;  // held earlier images, the newest in `current`
  Action action;
  bool stalled, have_best, save_best, revisiting, last;
};

__device__ inline void start_iterating(Control& c) {
  c.best_error = c.previous = INFINITY;
  c.best_pass = c.passes;
  c.steps = c.held = 0;
  c.current = 0;
  c.have_best = c.save_best = c.revisiting = false;
}

__device__ inline void start(Control& c) {
  c.error = INFINITY;
  c.passes = c.entries = c.log_entries = 0;
  c.attempt = 0;
  c.stalled = c.last = false;
  start_iterating(c);
}

// The ring's place of the k-th oldest image held before the current one.
__device__ inline int place(int current, int held, int k) { return (current - held + k + history) % history; }

// Weights of the affine combination of smallest residual, from products[0..]: the lower triangle of the Gram matrix of
// the differences of residuals, row by row, then their products with the last residual. Always of full size, so that
// all of it stays in registers: what is not held counts as a unit. L D L'. False if the matrix is not positive.
__device__ inline bool mixing_weights(const double* products, int held, double* weight) {
  double matrix[most_memory][most_memory], right[most_memory], largest = 0;
#pragma unroll
  for (int i = 0; i < most_memory; ++i) {
#pragma unroll
    for (int j = 0; j <= i; ++j) matrix[i][j] = i < held ? products[i * (i + 1) / 2 + j] : (i == j ? 1.0 : 0.0);
    if (i < held) largest = fmax(largest, matrix[i][i]);
  }
#pragma unroll
  for (int i = 0; i < most_memory; ++i) {
    right[i] = i < held ? products[held * (held + 1) / 2 + i] : 0;
    if (i < held) matrix[i][i] += ridge * largest;
  }
  bool positive = true;
#pragma unroll
  for (int j = 0; j < most_memory; ++j) {
#pragma unroll
    for (int k = 0; k < j; ++k) {
      const double factor = matrix[j][k] * matrix[k][k];
#pragma unroll
      for (int i = j; i < most_memory; ++i) matrix[i][j] -= matrix[i][k] * factor;
    }
    positive = positive && matrix[j][j] > 0;
    const double inverse = 1 / matrix[j][j];
#pragma unroll
    for (int i = j + 1; i < most_memory; ++i) matrix[i][j] *= inverse;
  }
#pragma unroll
  for (int i = 0; i < most_memory; ++i) {
#pragma unroll
    for (int k = 0; k < i; ++k) right[i] -= matrix[i][k] * right[k];
  }
#pragma unroll
  for (int i = most_memory - 1; i >= 0; --i) {
    right[i] /= matrix[i][i];
#pragma unroll
    for (int k = i + 1; k < most_memory; ++k) right[i] -= matrix[k][i] * right[k];
    weight[i] = right[i];
  }
  return positive;
}

// The next step of the iterations on one kernel: the image itself, or a combination of images.
__device__ inline Action next_step(Control& c, int memory, const double* products) {
  if (c.error > 3 * c.previous) c.held = 0;
  c.previous = c.error;
  ++c.steps;
  if (memory == 0 || c.steps <= plain_steps || c.held == 0) return Action::plain;
  return mixing_weights(products, c.held, c.weight) ? Action::mixed : Action::plain;
}

// totals: error, bad sums, potentials out of range, products.
__device__ inline void decide(Control& c, double tolerance, int64_t most, int memory, const double* totals) {
  const bool good = totals[1] == 0 && totals[0] - totals[0] == 0;
  ++c.passes;
  c.error = totals[0];
  c.save_best = false;
  const auto finished = [&] { return c.error <= tolerance || c.passes >= most || c.stalled; };
  bool usable = true;
  if (c.last) {
    c.action = Action::done;
    return;
  }
  if (!c.revisiting) {
    if (good) {
      if (c.error < c.best_error) {
        c.best_error = c.error;
        c.best_pass = c.passes;
        c.have_best = c.save_best = true;
      }
      c.stalled = tolerance >= 0 && c.passes - c.best_pass >= patience;
      if (!finished() && totals[2] == 0) {
        c.action = next_step(c, memory, totals + 3);
        return;
      }
    } else {
      c.error = INFINITY;
    }
    usable = c.have_best;
    if (usable && c.error > c.best_error && tolerance >= 0) {
      c.revisiting = true;
      c.action = Action::restore;
      return;
    }
  }
  if (c.attempt < most_entries && !finished()) {
    ++c.attempt;
    c.action = usable ? Action::absorb : Action::enter;
  } else {
    c.last = !usable;
    c.action = usable ? Action::done : Action::enter;
  }
}

}  // namespace cuda
}  // namespace geowidth
