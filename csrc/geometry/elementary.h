// Elementary functions for float and double, written so that one text serves loops that a compiler vectorises, CUDA,
// and plain scalar code: no branches, no tables, no library calls but sqrt. Everything has internal linkage on
// purpose: these headers are compiled once per instruction set, and the linker must not merge the copies.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define GEOWIDTH_HOST_DEVICE __host__ __device__
#else
#define GEOWIDTH_HOST_DEVICE
#endif

namespace geowidth {
namespace geometry {

#if defined(__CUDA_ARCH__)
// For x >= 0: one Newton step after the hardware's estimate, without the branch for extreme numbers that sqrtf has.
// Numbers under the least normal one give less than their root.
__device__ static inline float square_root(float x) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(fmaxf(x, 0x1p-126f)));
  const float root = x * inverse;
  return fmaf(fmaf(-root, root, x), 0.5f * inverse, root);
}
// a / b likewise, for b from 1 to 2^100.
__device__ static inline float quotient(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  const float ratio = a * inverse;
  return fmaf(fmaf(-b, ratio, a), inverse, ratio);
}
#else
GEOWIDTH_HOST_DEVICE static inline float square_root(float x) { return sqrtf(x); }
GEOWIDTH_HOST_DEVICE static inline float quotient(float a, float b) { return a / b; }
#endif
GEOWIDTH_HOST_DEVICE static inline double square_root(double x) { return sqrt(x); }
GEOWIDTH_HOST_DEVICE static inline double quotient(double a, double b) { return a / b; }

GEOWIDTH_HOST_DEVICE static inline float magnitude(float x) { return fabsf(x); }
GEOWIDTH_HOST_DEVICE static inline double magnitude(double x) { return fabs(x); }

// The sign bit, that of -0 too.
GEOWIDTH_HOST_DEVICE static inline bool is_negative(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits < 0;
}
GEOWIDTH_HOST_DEVICE static inline bool is_negative(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits < 0;
}

// asin(sqrt(w)) for 0 <= w <= 1/2. Polynomials: Chebyshev interpolation of asin(sqrt w)/sqrt w on [0, 1/2]; relative
// error 7e-9 and 3e-17 before rounding.
GEOWIDTH_HOST_DEVICE static inline float arcsine_of_root(float w) {
  float p = 0.123913495f;
  p = p * w - 0.135916271f;
  p = p * w + 0.107400021f;
  p = p * w - 0.00702057915f;
  p = p * w + 0.0358142393f;
  p = p * w + 0.0440916167f;
  p = p * w + 0.0750275732f;
  p = p * w + 0.166666142f;
  const float root = square_root(w);
  return root + root * (w * p);
}

GEOWIDTH_HOST_DEVICE static inline double arcsine_of_root(double w) {
  double p = 0.8892904367638688;
  p = p * w - 3.2789331567398123;
  p = p * w + 5.7579408313146987;
  p = p * w - 6.2292998753979858;
  p = p * w + 4.6420689099888434;
  p = p * w - 2.4908808126226117;
  p = p * w + 1.0082016650534187;
  p = p * w - 0.29687054306898243;
  p = p * w + 0.078716113570021266;
  p = p * w - 0.0026015378482996879;
  p = p * w + 0.013191002571753904;
  p = p * w + 0.01380344589589198;
  p = p * w + 0.017364281439103528;
  p = p * w + 0.022371584779320353;
  p = p * w + 0.030381963396751829;
  p = p * w + 0.044642856762615003;
  p = p * w + 0.075000000004018161;
  p = p * w + 0.16666666666664987;
  const double root = square_root(w);
  return root + root * (w * p);
}

// x = m 2^exponent with m in [sqrt(1/2), sqrt(2)), for finite x > 0; returns m - 1.
GEOWIDTH_HOST_DEVICE static inline float split_exponent(float x, float& exponent) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int32_t shift = (bits - 0x3f3504f3) >> 23;
  bits -= static_cast<int32_t>(static_cast<uint32_t>(shift) << 23);
  float m;
  memcpy(&m, &bits, sizeof m);
  exponent = static_cast<float>(shift);
  return m - 1.0f;
}

GEOWIDTH_HOST_DEVICE static inline double split_exponent(double x, double& exponent) {
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int64_t shift = (bits - 0x3fe6a09e667f3bcd) >> 52;
  bits -= static_cast<int64_t>(static_cast<uint64_t>(shift) << 52);
  double m;
  memcpy(&m, &bits, sizeof m);
  // int64 to double has no vector instruction before AVX-512: add to the bits of 1.5 * 2^52 instead.
  const int64_t carried = shift + 0x4338000000000000;
  double wide;
  memcpy(&wide, &carried, sizeof wide);
  exponent = wide - 6755399441055744.0;
  return m - 1.0;
}

// log((1 + s) / (1 - s)) / s as a polynomial in z = s^2, |s| <= (sqrt 2 - 1)/(sqrt 2 + 1).
GEOWIDTH_HOST_DEVICE static inline float log_series(float z) {
  float p = 0.299245067f;
  p = p * z + 0.399748462f;
  p = p * z + 0.666668154f;
  return p * z + 2.0f;
}

GEOWIDTH_HOST_DEVICE static inline double log_series(double z) {
  double p = 0.14809840930851814;
  p = p * z + 0.15312515662478014;
  p = p * z + 0.18183632146475035;
  p = p * z + 0.22222197048153643;
  p = p * z + 0.28571428760721908;
  p = p * z + 0.39999999999301984;
  p = p * z + 0.66666666666667646;
  return p * z + 2.0;
}

// log(1 + u) for finite u >= 0, all digits kept near 0: what 1 + u loses comes back as (u - ((1 + u) - 1)) / (1 + u).
template <typename T>
GEOWIDTH_HOST_DEVICE static inline T log_one_plus(T u) {
  const T w = T(1) + u;
  T exponent;
  const T f = split_exponent(w, exponent);
  const T s = quotient(f, T(2) + f);
  const T lost = quotient(u - (w - T(1)), w);
  return exponent * T(0.693147180559945309417) + (s * log_series(s * s) + lost);
}

// asinh(a) for a >= 0.
template <typename T>
GEOWIDTH_HOST_DEVICE static inline T arcsinh(T a) {
  const T square = a * a;
  return log_one_plus(a + quotient(square, T(1) + square_root(T(1) + square)));
}

}  // namespace geometry
}  // namespace geowidth
