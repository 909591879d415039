// Stands in for CUDA's own header, so that the files of kernels/cuda and csrc/cuda compile as plain C++17 and run on
// the CPU. Only tests include it.
//
// Every thread of a block is a fiber. It runs until it waits (__syncthreads, a warp operation, __nanosleep) or, now and
// then, before an atomic operation; then another one goes on, in an order drawn anew at every barrier from a seed.
// Blocks of a plain launch run one after another, in a drawn order; those of a cooperative launch live side by side.
// A launch ends with an error, its words in cudaGetErrorString, when
//   - a barrier is reached by a part of the block, at two places at once, or after a thread has left the kernel;
//   - lanes of a warp disagree on a warp operation, or one reads a lane that takes no part;
//   - no thread can go on, or all only sleep;
//   - a block writes just outside its dynamic shared memory (which starts as NaN), or a thread overflows its stack;
//   - the compiler's checks find undefined behaviour, such as a vector access that is not aligned (undefined.cpp);
//   - the grid, the block, the shared memory or a cooperative grid is more than the card has.
//
// What it cannot show: threads of a warp never run in step and writes are seen at once and in order, so neither a
// missing fence nor a warp-synchronous assumption shows, nor does a race between two threads that no order of whole
// stretches between waits brings out; a loop that spins without __nanosleep or atomics never ends; streams are no-ops,
// every call is done when it returns; registers and __launch_bounds__ set no limit; there are no timings.
// Cards since Volta do not wait for threads that have left; CUDA's guide does not promise it, and here it is a fault.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "emulator.h"

#define GEOWIDTH_EMULATOR 1
#define CUDART_VERSION 13000

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#include "cuda_host.h"
#include "cuda_vectors.h"

constexpr int warpSize = emulator::warp_lanes;

// ---- barriers and fences

inline void __syncthreads(emulator::Site site = emulator::Site::here()) {
  emulator::barrier(emulator::Kind::barrier, false, site);
}
inline int __syncthreads_or(int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::barrier(emulator::Kind::barrier_or, predicate != 0, site) != 0;
}
inline int __syncthreads_and(int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::barrier(emulator::Kind::barrier_and, predicate == 0, site) == 0;
}
inline int __syncthreads_count(int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::barrier(emulator::Kind::barrier_count, predicate != 0, site);
}
inline void __nanosleep(unsigned, emulator::Site site = emulator::Site::here()) { emulator::sleep(site); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- warps

inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::Site::here()) {
  emulator::collective(emulator::Kind::sync_warp, mask, 0, -1, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return static_cast<unsigned>(emulator::collective(emulator::Kind::ballot, mask, predicate != 0, -1, site));
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::collective(emulator::Kind::any, mask, predicate != 0, -1, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::collective(emulator::Kind::all, mask, predicate == 0, -1, site) == 0;
}

namespace emulator {

template <typename T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles values of 2, 4 or 8 bytes");
  constexpr Kind kind = sizeof(T) == 2 ? Kind::shuffle_16 : sizeof(T) == 4 ? Kind::shuffle_32 : Kind::shuffle_64;
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = collective(kind, mask, bits, source, site);
  memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

// Lanes are taken in segments of `width`; a source outside the lane's own segment is the lane itself.
inline int segment(int lane, int width) {
  if (width < 1 || width > warp_lanes || (width & (width - 1))) fault("the width of a shuffle must be a power of two");
  return lane / width * width;
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, emulator::Site site = emulator::Site::here()) {
  const int first = emulator::segment(emulator::lane(), width);
  return emulator::shuffle(mask, value, first + (source & (width - 1)), site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), from = lane - static_cast<int>(delta & (warpSize - 1));
  return emulator::shuffle(mask, value, from < emulator::segment(lane, width) ? lane : from, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), from = lane + static_cast<int>(delta & (warpSize - 1));
  return emulator::shuffle(mask, value, from >= emulator::segment(lane, width) + width ? lane : from, site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize,
                  emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), from = lane ^ (bits & (warpSize - 1));
  return emulator::shuffle(mask, value, from >= emulator::segment(lane, width) + width ? lane : from, site);
}

// ---- atomics

namespace emulator {

template <typename T, typename New>
T exchange(T* address, const New& changed) {
  atomic();
  const T before = *address;
  *address = changed(before);
  return before;
}

}  // namespace emulator

#define EMULATOR_ATOMIC(name, type, result)                                          \
  inline type name(type* address, type value) {                                      \
    return emulator::exchange(address, [=](type before) -> type { return result; }); \
  }
EMULATOR_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(value)))
EMULATOR_ATOMIC(atomicAdd, unsigned, before + value)
EMULATOR_ATOMIC(atomicAdd, unsigned long long, before + value)
EMULATOR_ATOMIC(atomicAdd, float, before + value)
EMULATOR_ATOMIC(atomicAdd, double, before + value)
EMULATOR_ATOMIC(atomicMax, int, before < value ? value : before)
EMULATOR_ATOMIC(atomicMax, unsigned, before < value ? value : before)
EMULATOR_ATOMIC(atomicMax, unsigned long long, before < value ? value : before)
EMULATOR_ATOMIC(atomicMin, int, value < before ? value : before)
EMULATOR_ATOMIC(atomicMin, unsigned, value < before ? value : before)
EMULATOR_ATOMIC(atomicMin, unsigned long long, value < before ? value : before)
EMULATOR_ATOMIC(atomicOr, unsigned, before | value)
EMULATOR_ATOMIC(atomicAnd, unsigned, before& value)
EMULATOR_ATOMIC(atomicExch, int, (static_cast<void>(before), value))
EMULATOR_ATOMIC(atomicExch, unsigned, (static_cast<void>(before), value))
EMULATOR_ATOMIC(atomicExch, unsigned long long, (static_cast<void>(before), value))
EMULATOR_ATOMIC(atomicExch, float, (static_cast<void>(before), value))
#undef EMULATOR_ATOMIC

#define EMULATOR_COMPARE_AND_SWAP(type)                                                                          \
  inline type atomicCAS(type* address, type compare, type value) {                                               \
    return emulator::exchange(address, [=](type before) -> type { return before == compare ? value : before; }); \
  }
EMULATOR_COMPARE_AND_SWAP(int)
EMULATOR_COMPARE_AND_SWAP(unsigned)
EMULATOR_COMPARE_AND_SWAP(unsigned long long)
#undef EMULATOR_COMPARE_AND_SWAP

// ---- loads and stores with a cache hint

namespace emulator {

template <typename T>
T* aligned(T* address, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(T))
    fault("accesses " + std::to_string(sizeof(T)) + " bytes at an address that is not aligned for them, at " +
          site.file + ":" + std::to_string(site.line) + " in " + site.function);
  return address;
}

}  // namespace emulator

#define EMULATOR_LOAD(name)                                                \
  template <typename T>                                                    \
  T name(const T* address, emulator::Site site = emulator::Site::here()) { \
    return *emulator::aligned(address, site);                              \
  }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
#undef EMULATOR_LOAD

#define EMULATOR_STORE(name)                                                     \
  template <typename T>                                                          \
  void name(T* address, T value, emulator::Site site = emulator::Site::here()) { \
    *emulator::aligned(address, site) = value;                                   \
  }
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwt)
#undef EMULATOR_STORE

#include "cuda_math.h"
