// CUDA's half for the emulator: conversions round to nearest, ties to even; NaN becomes 0x7fff as on the card.
#pragma once

#include <cuda_runtime.h>

struct __half_raw {
  unsigned short x;
};

struct __attribute__((aligned(2))) __half {
  unsigned short __x;
  __half() = default;
  __half(float value);
  __half(__half_raw raw) : __x(raw.x) {}
  operator float() const;
  operator __half_raw() const { return {__x}; }
};

struct __attribute__((aligned(4))) __half2 {
  __half x, y;
};

typedef __half half;
typedef __half2 half2;

inline unsigned short __half_as_ushort(__half value) { return value.__x; }
inline short __half_as_short(__half value) { return static_cast<short>(value.__x); }
inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }

inline float __half2float(__half value) {
  const unsigned sign = static_cast<unsigned>(value.__x & 0x8000u) << 16, rest = value.__x & 0x7fffu;
  if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return __uint_as_float(sign | ((rest << 13) + 0x38000000u));
  const float small = static_cast<float>(rest) * 0x1p-24f;
  return sign ? -small : small;
}

inline __half __float2half_rn(float value) {
  if (isnan(value)) return __ushort_as_half(0x7fff);
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  unsigned rounded;
  if (rest >= 0x477ff000u)  // 65520, halfway to what would be the next number
    rounded = 0x7c00u;
  else if (rest < 0x38800000u)  // a multiple of 2^-24, by the rounding of a sum
    rounded = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
  else
    rounded = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
  return __ushort_as_half(static_cast<unsigned short>(sign | rounded));
}
inline __half __float2half(float value) { return __float2half_rn(value); }

inline __half::__half(float value) : __x(__float2half_rn(value).__x) {}
inline __half::operator float() const { return __half2float(*this); }

inline float __low2float(__half2 pair) { return __half2float(pair.x); }
inline float __high2float(__half2 pair) { return __half2float(pair.y); }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 pair) { return __floats2half2_rn(pair.x, pair.y); }
