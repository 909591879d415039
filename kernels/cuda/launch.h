// The one way kernels are started: `launch(kernel, {grid, block, ...}, stream, arguments...)`. No <<<>>> anywhere, so
// that the same sources compile as plain C++ against the tests' emulator.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace geowidth {
namespace cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// How many parts of `size` hold `count` things.
inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;   // dynamic shared memory of a block
  bool cooperative = false;  // all blocks run at once, so that they may wait for one another
};

constexpr size_t shared_bytes_without_asking = 48 * 1024;

// Arguments are converted to the kernel's parameter types before their addresses are taken. Throws std::runtime_error
// with CUDA's own words if the launch is refused. A grid with no blocks must not get here.
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream,
            std::common_type_t<Parameters>... arguments) {
  void* addresses[] = {static_cast<void*>(&arguments)...};
  if (how.shared_bytes > shared_bytes_without_asking)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(how.shared_bytes)),
          "CUDA shared memory");
  if (how.cooperative)
    check(cudaLaunchCooperativeKernel(kernel, how.grid, how.block, addresses, how.shared_bytes, stream),
          "CUDA cooperative launch");
  else
    check(cudaLaunchKernel(kernel, how.grid, how.block, addresses, how.shared_bytes, stream), "CUDA kernel launch");
}

}  // namespace cuda
}  // namespace geowidth
