#include "cpu/ffn_activation.h"

#include "cpu/vector_math.h"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

constexpr int64_t group_size = 16;  // elements go through in whole groups, so that no row ends in scalar code

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

// act(x) and act'(x). The compiler drops whichever is not used.
template <class T>
struct Point {
  T value, slope;
};

template <Activation ACTIVATION, class T>
inline Point<T> evaluate(T x) {
  using C = Constants<T>;
  if constexpr (ACTIVATION == Activation::silu) {
    const Logistic<T> s = logistic(x);
    const T c = clamp(x, 2 * C::exp_low, -2 * C::exp_low);
    const T bounded = x < 2 * C::exp_low ? 2 * C::exp_low : x;  // so that -inf gives 0, not -inf
    return {bounded * s.value, s.value * (T(1) + c * s.complement)};
  } else if constexpr (ACTIVATION == Activation::gelu) {
    const Normal<T> n = normal(x);
    const T c = clamp(x, -C::normal_limit, C::normal_limit);
    const T bounded = x < -C::normal_limit ? -C::normal_limit : x;
    return {bounded * n.distribution, n.distribution + c * n.density};
  } else if constexpr (ACTIVATION == Activation::gelu_tanh) {
    // x (1 + tanh z) / 2 = x logistic(2 z), 2 z = linear x + cubic x^3; saturated well before |x| = 30.
    const T linear = T(1.59576912160573071176), cubic = linear * T(0.044715);
    const T c = clamp(x, T(-30), T(30));
    const Logistic<T> s = logistic(c * (linear + cubic * c * c));
    const T bounded = x < T(-30) ? T(-30) : x;
    return {bounded * s.value, s.value * (T(1) + c * s.complement * (linear + T(3) * cubic * c * c))};
  } else if constexpr (ACTIVATION == Activation::relu) {
    return {x < T(0) ? T(0) : x, x > T(0) ? T(1) : x < T(0) ? T(0) : x};  // the slope of a NaN is one
  } else {
    const T r = x < T(0) ? T(0) : x;
    return {r * r, T(2) * r};
  }
}

// What one row of a task reads and writes. Results may lie where inputs lay: element i depends on elements i alone.
template <class S>
struct Row {
  const S *gate, *up, *grad_hidden;
  S *hidden, *grad_gate, *grad_up;
};

template <class Type, Activation ACTIVATION, bool GATED>
struct Forward {
  using S = typename Type::Storage;
  using T = typename Type::Value;

  static void group(const Row<S>& row, int64_t count) {
    const S *gate = row.gate, *up = row.up;
    S* hidden = row.hidden;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const T u = Type::widen(up[i]);
      hidden[i] =
          Type::round(GATED ? evaluate<ACTIVATION>(Type::widen(gate[i])).value * u : evaluate<ACTIVATION>(u).value);
    }
  }
};

template <class Type, Activation ACTIVATION, bool GATED, bool HIDDEN>
struct AnyBackward {
  using S = typename Type::Storage;
  using T = typename Type::Value;

  static void group(const Row<S>& row, int64_t count) {
    const S *gate = row.gate, *up = row.up, *grad_hidden = row.grad_hidden;
    S *hidden = row.hidden, *grad_gate = row.grad_gate, *grad_up = row.grad_up;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const T u = Type::widen(up[i]), gradient = Type::widen(grad_hidden[i]);
      const Point<T> act = evaluate<ACTIVATION>(GATED ? Type::widen(gate[i]) : u);
      const T pointed = gradient * act.slope;
      if (GATED) grad_gate[i] = Type::round(pointed * u);
      grad_up[i] = Type::round(GATED ? gradient * act.value : pointed);
      if (HIDDEN) hidden[i] = Type::round(GATED ? act.value * u : act.value);
    }
  }
};

template <class Type, Activation ACTIVATION, bool GATED>
using Backward = AnyBackward<Type, ACTIVATION, GATED, false>;
template <class Type, Activation ACTIVATION, bool GATED>
using BackwardAndHidden = AnyBackward<Type, ACTIVATION, GATED, true>;

template <class S>
S* at(const Matrix& matrix, int64_t row) {
  return matrix.data ? static_cast<S*>(matrix.data) + row * matrix.stride : nullptr;
}

// The last elements of a row, fewer than a group, by way of whole groups.
template <class Kernel>
void last_group(const Row<typename Kernel::S>& row, int64_t count) {
  using S = typename Kernel::S;
  S in[3][group_size] = {}, out[3][group_size];
  const S* sources[3] = {row.gate, row.up, row.grad_hidden};
  for (int m = 0; m < 3; ++m)
    if (sources[m])
      for (int64_t i = 0; i < count; ++i) in[m][i] = sources[m][i];
  Kernel::group({in[0], in[1], in[2], out[0], out[1], out[2]}, group_size);
  S* targets[3] = {row.hidden, row.grad_gate, row.grad_up};
  for (int m = 0; m < 3; ++m)
    if (targets[m])
      for (int64_t i = 0; i < count; ++i) targets[m][i] = out[m][i];
}

template <class Kernel>
void run_rows(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  using S = typename Kernel::S;
  const int64_t whole = task.columns / group_size * group_size;
  for (int64_t r = row_begin; r < row_end; ++r) {
    Row<S> row{at<S>(task.gate, r),   at<S>(task.up, r),        at<S>(task.grad_hidden, r),
               at<S>(task.hidden, r), at<S>(task.grad_gate, r), at<S>(task.grad_up, r)};
    Kernel::group(row, whole);
    if (whole == task.columns) continue;
    const S** sources[] = {&row.gate, &row.up, &row.grad_hidden};
    S** targets[] = {&row.hidden, &row.grad_gate, &row.grad_up};
    for (const S** source : sources)
      if (*source) *source += whole;
    for (S** target : targets)
      if (*target) *target += whole;
    last_group<Kernel>(row, task.columns - whole);
  }
}

template <template <class, Activation, bool> class Kernel, class Type, Activation ACTIVATION>
void run_gated(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  if (task.gate.data)
    run_rows<Kernel<Type, ACTIVATION, true>>(task, row_begin, row_end);
  else
    run_rows<Kernel<Type, ACTIVATION, false>>(task, row_begin, row_end);
}

template <template <class, Activation, bool> class Kernel, class Type>
void run_activation(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  switch (task.activation) {
    case Activation::silu: return run_gated<Kernel, Type, Activation::silu>(task, row_begin, row_end);
    case Activation::gelu: return run_gated<Kernel, Type, Activation::gelu>(task, row_begin, row_end);
    case Activation::gelu_tanh: return run_gated<Kernel, Type, Activation::gelu_tanh>(task, row_begin, row_end);
    case Activation::relu: return run_gated<Kernel, Type, Activation::relu>(task, row_begin, row_end);
    case Activation::relu2: return run_gated<Kernel, Type, Activation::relu2>(task, row_begin, row_end);
  }
}

template <template <class, Activation, bool> class Kernel>
void run(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  switch (task.scalar) {
    case Scalar::float32: return run_activation<Kernel, Float32>(task, row_begin, row_end);
    case Scalar::float64: return run_activation<Kernel, Float64>(task, row_begin, row_end);
    case Scalar::bfloat16: return run_activation<Kernel, BFloat16>(task, row_begin, row_end);
    case Scalar::float16: return run_activation<Kernel, Float16>(task, row_begin, row_end);
  }
}

}  // namespace

void activation_forward(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  run<Forward>(task, row_begin, row_end);
}

void activation_backward(const ActivationTask& task, int64_t row_begin, int64_t row_end) {
  if (task.hidden.data)
    run<BackwardAndHidden>(task, row_begin, row_end);
  else
    run<Backward>(task, row_begin, row_end);
}

}  // namespace geowidth::GEOWIDTH_VARIANT
