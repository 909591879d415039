// What kernels use of a block beyond plain CUDA: shared memory by name, a barrier for the whole grid.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace geowidth {
namespace cuda {

// Whether 16 bytes may be read from p, or written there, at a time.
__host__ __device__ __forceinline__ bool at_16_bytes(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

// The block's dynamic shared memory, 16-byte aligned. Kernels use no other kind: a static __shared__ variable would be
// one for all blocks in the tests' emulator.
#ifndef GEOWIDTH_EMULATOR
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}
#else
using emulator::dynamic_shared;
#endif

// All threads of all blocks of a cooperative launch wait for each other, and see each other's writes to device memory
// afterwards. `arrived` is one counter in device memory, 0 at the start of the kernel; `phase` counts the barriers
// passed, 0 at first, in every thread alike.
__device__ inline void grid_barrier(unsigned* arrived, unsigned& phase) {
  __syncthreads();
  ++phase;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const unsigned all = phase * gridDim.x * gridDim.y * gridDim.z;
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile unsigned*>(arrived) < all) __nanosleep(32);
    __threadfence();
  }
  __syncthreads();
}

}  // namespace cuda
}  // namespace geowidth
