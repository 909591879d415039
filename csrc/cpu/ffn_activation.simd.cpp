#include "cpu/ffn_activation.h"

namespace geowidth {
namespace GEOWIDTH_VARIANT {
namespace {

#include "cpu/vector_math.h"

constexpr int BLOCK = 256;  // columns at a time: what a block needs stays in the first cache

// Storage types: how one element is widened and rounded. Written in integer arithmetic that every instruction set
// vectorises; rounding is to nearest, ties to even.
struct Float32 {
  using Storage = float;
  using Value = float;
  static inline float widen(float x) { return x; }
  static inline float round(float x) { return x; }
};

struct Float64 {
  using Storage = double;
  using Value = double;
  static inline double widen(double x) { return x; }
  static inline double round(double x) { return x; }
};

struct BFloat16 {
  using Storage = uint16_t;
  using Value = float;
  static inline float widen(uint16_t x) { return bits_as<float>(static_cast<uint32_t>(x) << 16); }
  static inline uint16_t round(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
};

struct Float16 {
  using Storage = uint16_t;
  using Value = float;
  static inline float widen(uint16_t x) {
    const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fffu) << 13;
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
    // Multiplying by 2^112 moves the exponent to its place and makes subnormal numbers normal, exactly.
    const uint32_t finite = bits_as<uint32_t>(bits_as<float>(magnitude) * 5.192296858534828e33f);
    return bits_as<float>(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
  }
  static inline uint16_t round(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14 adding 1/2 leaves the result in the low bits of the sum, rounded by the addition itself.
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? special : finite));
  }
};

// value[i] = act(x[i]) and, where asked for, slope[i] = act'(x[i]).
template <class T, bool SLOPE>
void evaluate(Activation activation, const T* __restrict x, T* __restrict value, T* __restrict slope, int count) {
  using C = Constants<T>;
  switch (activation) {
    case Activation::silu:
      for (int i = 0; i < count; ++i) {
        const Logistic<T> s = logistic(x[i]);
        const T bounded = x[i] < 2 * C::exp_low ? 2 * C::exp_low : x[i];  // so that -inf gives 0, not -inf
        value[i] = bounded * s.value;
        if (SLOPE) slope[i] = s.value * (T(1) + clamp(x[i], 2 * C::exp_low, -2 * C::exp_low) * s.complement);
      }
      break;
    case Activation::gelu:
      for (int i = 0; i < count; ++i) {
        const Normal<T> n = normal(x[i]);
        const T bounded = x[i] < -C::normal_limit ? -C::normal_limit : x[i];
        value[i] = bounded * n.distribution;
        if (SLOPE) slope[i] = n.distribution + clamp(x[i], -C::normal_limit, C::normal_limit) * n.density;
      }
      break;
    case Activation::gelu_tanh:
      // x (1 + tanh z) / 2 = x logistic(2 z), 2 z = linear x + cubic x^3; saturated well before |x| = 30.
      for (int i = 0; i < count; ++i) {
        const T linear = T(1.59576912160573071176), cubic = linear * T(0.044715);
        const T c = clamp(x[i], T(-30), T(30));
        const Logistic<T> s = logistic(c * (linear + cubic * c * c));
        const T bounded = x[i] < T(-30) ? T(-30) : x[i];
        value[i] = bounded * s.value;
        if (SLOPE) slope[i] = s.value * (T(1) + c * s.complement * (linear + T(3) * cubic * c * c));
      }
      break;
    case Activation::relu:
      for (int i = 0; i < count; ++i) {
        value[i] = x[i] < T(0) ? T(0) : x[i];
        if (SLOPE) slope[i] = x[i] > T(0) ? T(1) : x[i] < T(0) ? T(0) : x[i];  // a NaN stays one
      }
      break;
    case Activation::relu2:
      for (int i = 0; i < count; ++i) {
        const T r = x[i] < T(0) ? T(0) : x[i];
        value[i] = r * r;
        if (SLOPE) slope[i] = T(2) * r;
      }
      break;
  }
}

template <class Type>
const typename Type::Storage* row_of(const Matrix& matrix, int64_t row) {
  return static_cast<const typename Type::Storage*>(matrix.data) + row * matrix.stride;
}

template <class Type>
void load(const Matrix& from, int64_t row, int64_t column, int count, typename Type::Value* __restrict to) {
  const auto* __restrict source = row_of<Type>(from, row) + column;
  for (int i = 0; i < count; ++i) to[i] = Type::widen(source[i]);
}

template <class Type>
void store(const typename Type::Value* __restrict from, const Matrix& to, int64_t row, int64_t column, int count) {
  auto* __restrict target = static_cast<typename Type::Storage*>(to.data) + row * to.stride + column;
  for (int i = 0; i < count; ++i) target[i] = Type::round(from[i]);
}

template <class Type>
void forward_block(const ActivationTask& task, int64_t row, int64_t column, int count) {
  using T = typename Type::Value;
  T x[BLOCK], value[BLOCK];
  const bool gated = task.gate.data != nullptr;
  load<Type>(gated ? task.gate : task.up, row, column, count, x);
  evaluate<T, false>(task.activation, x, value, nullptr, count);
  if (gated) {
    load<Type>(task.up, row, column, count, x);
    for (int i = 0; i < count; ++i) value[i] *= x[i];
  }
  store<Type>(value, task.hidden, row, column, count);
}

template <class Type>
void backward_block(const ActivationTask& task, int64_t row, int64_t column, int count) {
  using T = typename Type::Value;
  T x[BLOCK], value[BLOCK], slope[BLOCK], gradient[BLOCK];
  const bool gated = task.gate.data != nullptr;
  load<Type>(gated ? task.gate : task.up, row, column, count, x);
  evaluate<T, true>(task.activation, x, value, slope, count);
  load<Type>(task.grad_hidden, row, column, count, gradient);  // before hidden is written: it may be the same memory
  for (int i = 0; i < count; ++i) slope[i] *= gradient[i];
  if (gated) {
    load<Type>(task.up, row, column, count, x);
    for (int i = 0; i < count; ++i) {
      slope[i] *= x[i];
      gradient[i] *= value[i];
      value[i] *= x[i];
    }
    store<Type>(slope, task.grad_gate, row, column, count);
    store<Type>(gradient, task.grad_up, row, column, count);
  } else {
    store<Type>(slope, task.grad_up, row, column, count);
  }
  if (task.hidden.data) store<Type>(value, task.hidden, row, column, count);
}

template <class Type, bool BACKWARD>
void run_rows(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row)
    for (int64_t column = 0; column < task.columns; column += BLOCK) {
      const int64_t left = task.columns - column;
      const int count = static_cast<int>(left < BLOCK ? left : BLOCK);
      if (BACKWARD)
        backward_block<Type>(task, row, column, count);
      else
        forward_block<Type>(task, row, column, count);
    }
}

template <bool BACKWARD>
void run(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  switch (task.scalar) {
    case Scalar::float32: return run_rows<Float32, BACKWARD>(task, row_begin, row_end);
    case Scalar::float64: return run_rows<Float64, BACKWARD>(task, row_begin, row_end);
    case Scalar::bfloat16: return run_rows<BFloat16, BACKWARD>(task, row_begin, row_end);
    case Scalar::float16: return run_rows<Float16, BACKWARD>(task, row_begin, row_end);
  }
}

}  // namespace

void activation_forward(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  run<false>(task, row_begin, row_end);
}

void activation_backward(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  run<true>(task, row_begin, row_end);
}

}  // namespace GEOWIDTH_VARIANT
}  // namespace geowidth
