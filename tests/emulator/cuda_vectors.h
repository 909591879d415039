// CUDA's vector types with their alignments, and make_*.
#pragma once

#define EMULATOR_VECTOR2(name, type)      \
  struct alignas(2 * sizeof(type)) name { \
    type x, y;                            \
  };                                      \
  inline name make_##name(type x, type y) { return {x, y}; }
#define EMULATOR_VECTOR3(name, type) \
  struct name {                      \
    type x, y, z;                    \
  };                                 \
  inline name make_##name(type x, type y, type z) { return {x, y, z}; }
#define EMULATOR_VECTOR4(name, type)      \
  struct alignas(4 * sizeof(type)) name { \
    type x, y, z, w;                      \
  };                                      \
  inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

EMULATOR_VECTOR2(char2, signed char)
EMULATOR_VECTOR4(char4, signed char)
EMULATOR_VECTOR2(uchar2, unsigned char)
EMULATOR_VECTOR4(uchar4, unsigned char)
EMULATOR_VECTOR2(short2, short)
EMULATOR_VECTOR4(short4, short)
EMULATOR_VECTOR2(ushort2, unsigned short)
EMULATOR_VECTOR4(ushort4, unsigned short)
EMULATOR_VECTOR2(int2, int)
EMULATOR_VECTOR3(int3, int)
EMULATOR_VECTOR4(int4, int)
EMULATOR_VECTOR2(uint2, unsigned)
EMULATOR_VECTOR4(uint4, unsigned)
EMULATOR_VECTOR2(longlong2, long long)
EMULATOR_VECTOR2(ulonglong2, unsigned long long)
EMULATOR_VECTOR2(float2, float)
EMULATOR_VECTOR3(float3, float)
EMULATOR_VECTOR4(float4, float)
EMULATOR_VECTOR2(double2, double)
EMULATOR_VECTOR3(double3, double)
#undef EMULATOR_VECTOR2
#undef EMULATOR_VECTOR3
#undef EMULATOR_VECTOR4

inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
