// exp, the logistic function and the normal distribution function as straight-line code: no branches, no calls, no
// tables. One number at a time is for loops that the compiler vectorises. For *.simd.cpp files only.
//
// A NaN argument gives a NaN; arguments beyond a function's range are clamped to where it has already saturated.
#pragma once

#include "cpu/lanes.h"

namespace geowidth::GEOWIDTH_VARIANT {

template <class T>
struct Constants;

template <>
struct Constants<float> {
  using Bits = uint32_t;  // unsigned: a shift to the left must not overflow
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float exp_low = -87.0f, exp_high = 88.0f;
  static constexpr float exp_series[8] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040};
  // 2^f = sum_k power_series[k] (power_unit f)^k on [-1/2, 1/2], relative error 2e-8 before rounding (Taylor, the last
  // terms stretched)
  static constexpr float power_low = -126.0f, power_high = 126.0f, power_unit = 1.0f;
  static constexpr float power_series[7] = {1.0f,          6.9314720e-1f, 2.4022648e-1f, 5.5503324e-2f,
                                            9.6184370e-3f, 1.3398874e-3f, 1.5353362e-4f};
  static constexpr float normal_limit = 14.0f;  // the density there is 1e-43
  // Phi(-a) = exp(-a^2 / 2) / 2 * t * polynomial(scale * t + shift), t = knee / (knee + a): a Chebyshev fit of
  // erfcx(a / sqrt 2) / t on [0, normal_limit], within 3.2e-8 of it before rounding.
  static constexpr float knee = 3.0f, scale = 17.0f / 7.0f, shift = -10.0f / 7.0f;
  static constexpr float tail[10] = {0.550918281f,     0.326484233f,    0.114262551f,    0.0140940491f,
                                     -0.00488793058f,  -0.00133791543f, 0.000412292138f, 9.86551167e-05f,
                                     -4.01359539e-05f, -4.10599887e-06f};
};

template <>
struct Constants<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  static constexpr double exp_low = -708.0, exp_high = 709.0;
  static constexpr double exp_series[14] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
  static constexpr double power_low = -1022.0, power_high = 1022.0, power_unit = 0.69314718055994530942;
  static constexpr auto& power_series = exp_series;
  static constexpr double normal_limit = 37.0;
  // The same fit on [0, 40], within 3e-15.
  static constexpr double knee = 4.0, scale = 2.2, shift = -1.2;
  static constexpr double tail[21] = {0.406946125363127,      0.3104971434250668,     0.18225402697339999,
                                      0.07853165919994198,    0.02163462201026901,    0.001666157721901487,
                                      -0.001262212303311772,  -0.0003761553001967243, 7.40406775443254e-05,
                                      4.5332576785003906e-05, -6.833734747861162e-06, -5.3995634349414696e-06,
                                      1.1035057809115647e-06, 6.345392924753649e-07,  -2.2200591364513869e-07,
                                      -6.337086739110079e-08, 4.2491487718082285e-08, 3.6384584066045237e-09,
                                      -6.474315694105108e-09, 6.173854762337996e-11,  5.679946381350957e-10};
};

template <class To, class From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

template <class T>
inline T clamp(T x, T low, T high) {
  x = x < low ? low : x;  // false for a NaN, which so passes
  return x > high ? high : x;
}

// sum_k series[k] x^k, of a number or of every lane.
template <class V, class T, int terms>
GEOWIDTH_INLINE inline V polynomial(V x, const T (&series)[terms]) {
  V sum = series[terms - 1];
#pragma GCC unroll 32
  for (int k = terms - 2; k >= 0; --k) sum = sum * x + series[k];
  return sum;
}

// There are two exponentials because what they promise differs, and with it their bits. Activations want the last
// digit: x is reduced in two steps. Sinkhorn's sums want speed and true zeros: x log2(e) is rounded once, which costs
// no more than the rounding of x itself did.

// exp(x), within 1.5 units in the last place; 1.6e-38 (float) or 3e-308 (double) below its range.
template <class T>
inline T exponential(T x) {
  using C = Constants<T>;
  using Bits = typename C::Bits;
  x = clamp(x, C::exp_low, C::exp_high);
  const T shifted = x * T(1.44269504088896340736) + C::magic;
  const T n = shifted - C::magic;
  const T r = (x - n * C::ln2_high) - n * C::ln2_low;
  const T sum = polynomial(r, C::exp_series);  // |r| <= ln(2) / 2 leaves less than a rounding error
  const Bits exponent = bits_as<Bits>(shifted) - bits_as<Bits>(C::magic) + C::bias;
  return sum * bits_as<T>(static_cast<Bits>(exponent << C::mantissa));
}

// exp(x): 0 below the normal range, the largest power of two above it; never NaN or infinite for finite x.
template <typename T>
GEOWIDTH_INLINE inline Vector<T> exponential_or_zero(Vector<T> x) {
  using C = Constants<T>;
  using Bits = typename C::Bits;
  const Vector<T> bounded = smaller<T>(C::power_high, x * T(1.44269504088896340736));
  const auto small = bounded < C::power_low;
  const Vector<T> t = choose<T>(small, C::power_low, bounded);
  const Vector<T> shifted = t + C::magic;
  const Vector<T> f = t - (shifted - C::magic);
  const Vector<T> power = polynomial(C::power_unit * f, C::power_series);
  return choose<T>(small, T(0), reread<T>(reread<Bits>(power) + (reread<Bits>(shifted) << C::mantissa)));
}

// The logistic function s = 1 / (1 + exp(-x)) and its complement 1 - s, each with full relative precision.
template <class T>
struct Logistic {
  T value, complement;
};

template <class T>
inline Logistic<T> logistic(T x) {
  const T e = exponential(-x);
  const T value = T(1) / (T(1) + e);
  return {value, e * value};
}

// The standard normal distribution function and its density.
template <class T>
struct Normal {
  T distribution, density;
};

template <class T>
inline Normal<T> normal(T x) {
  using C = Constants<T>;
  const T a = clamp(x < T(0) ? -x : x, T(0), C::normal_limit);
  const T e = exponential(T(-0.5) * a * a);
  const T t = C::knee / (C::knee + a);
  const T s = C::scale * t + C::shift;
  const T tail = T(0.5) * e * t * polynomial(s, C::tail);
  return {x < T(0) ? tail : T(1) - tail, e * T(0.39894228040143267794)};
}

}  // namespace geowidth::GEOWIDTH_VARIANT
