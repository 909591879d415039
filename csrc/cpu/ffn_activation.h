// The elementwise part of a feed-forward layer, forward and backward, between the library's matrix products.
//
// Gated:    hidden = act(gate) * up      Ungated: hidden = act(up), gate is null.
// Every matrix has unit column stride and any row stride (0 for an expanded one). Arithmetic is float for float,
// bfloat16 and float16, double for double; a result is rounded to its storage type once.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

// Both enumerations are numbered as in geowidth/ops/activation/operation.py.
enum class Activation : int { silu, gelu, gelu_tanh, relu, relu2 };
enum class Scalar : int { float32, float64, bfloat16, float16 };

struct Matrix {
  void* data;      // null: absent
  int64_t stride;  // elements from one row to the next
};

struct ActivationTask {
  Scalar scalar;
  Activation activation;
  int64_t rows, columns;
  Matrix gate, up;                         // read
  Matrix hidden;                           // forward: written. backward: written unless absent
  Matrix grad_hidden, grad_gate, grad_up;  // backward only; `hidden` may be `grad_hidden` itself
};

// Splits rows over `threads`. Same input, same bits, for any number of them.
void ffn_activation(const ActivationTask& task, bool backward, int threads);

}  // namespace geowidth

GEOWIDTH_DECLARE(void activation_forward(const ActivationTask& task, int64_t row_begin, int64_t row_end))
GEOWIDTH_DECLARE(void activation_backward(const ActivationTask& task, int64_t row_begin, int64_t row_end))
