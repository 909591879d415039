// CUDA's bfloat16 for the emulator: conversions round to nearest, ties to even; NaN becomes 0x7fff as on the card.
#pragma once

#include <cuda_runtime.h>

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct __attribute__((aligned(2))) __nv_bfloat16 {
  unsigned short __x;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value);
  __nv_bfloat16(__nv_bfloat16_raw raw) : __x(raw.x) {}
  operator float() const;
  operator __nv_bfloat16_raw() const { return {__x}; }
};

struct __attribute__((aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.__x; }
inline short __bfloat16_as_short(__nv_bfloat16 value) { return static_cast<short>(value.__x); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }

inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(static_cast<unsigned>(value.__x) << 16); }

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (isnan(value)) return __ushort_as_bfloat16(0x7fff);
  const unsigned bits = __float_as_uint(value);
  return __ushort_as_bfloat16(static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16));
}
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

inline __nv_bfloat16::__nv_bfloat16(float value) : __x(__float2bfloat16_rn(value).__x) {}
inline __nv_bfloat16::operator float() const { return __bfloat162float(*this); }

inline float __low2float(__nv_bfloat162 pair) { return __bfloat162float(pair.x); }
inline float __high2float(__nv_bfloat162 pair) { return __bfloat162float(pair.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {__bfloat162float(pair.x), __bfloat162float(pair.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) { return __floats2bfloat162_rn(pair.x, pair.y); }
