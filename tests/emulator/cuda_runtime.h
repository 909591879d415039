// Stands in for CUDA's own header so that kernels compile as plain C++ and run on the CPU, one thread after another:
// enough for kernels without barriers, shuffles or shared memory. Only tests include it.
#pragma once

#include <cstddef>
#include <utility>

#define __global__
#define __device__
#define __host__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

typedef int cudaError_t;
typedef struct CUstream_st* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidConfiguration = 9;

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess ? "no error" : "invalid configuration argument";
}

namespace emulator {

// CUDA's limits: what the driver would refuse is refused here.
inline bool allowed(dim3 grid, dim3 block) {
  const bool some = grid.x && grid.y && grid.z && block.x && block.y && block.z;
  return some && grid.x <= 0x7fffffffu && grid.y <= 65535u && grid.z <= 65535u && block.x <= 1024u &&
         block.y <= 1024u && block.z <= 64u && static_cast<size_t>(block.x) * block.y * block.z <= 1024u;
}

template <typename Body>
void for_each(dim3 extent, dim3& index, const Body& body) {
  for (index.z = 0; index.z < extent.z; ++index.z)
    for (index.y = 0; index.y < extent.y; ++index.y)
      for (index.x = 0; index.x < extent.x; ++index.x) body();
}

template <typename... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<Parameters*>(arguments[I])...);
}

}  // namespace emulator

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t) {
  if (!emulator::allowed(grid, block)) return cudaErrorInvalidConfiguration;
  gridDim = grid;
  blockDim = block;
  emulator::for_each(grid, blockIdx, [&] {
    emulator::for_each(block, threadIdx,
                       [&] { emulator::call(kernel, arguments, std::index_sequence_for<Parameters...>()); });
  });
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}

template <typename... Parameters>
cudaError_t cudaLaunchCooperativeKernel(void (*)(Parameters...), dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorInvalidConfiguration;
}
