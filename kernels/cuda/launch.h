// The one way kernels are started: `launch(kernel, grid, block, shared_bytes, stream, arguments...)`. No <<<>>>
// anywhere, so that the same sources compile as plain C++ against the tests' emulator.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace geowidth {
namespace cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Arguments are converted to the kernel's parameter types before their addresses are taken. Throws std::runtime_error
// with CUDA's own words if the launch is refused. A grid with no blocks must not get here.
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            std::common_type_t<Parameters>... arguments) {
  void* addresses[] = {static_cast<void*>(&arguments)...};
  check(cudaLaunchKernel(kernel, grid, block, addresses, shared_bytes, stream), "CUDA kernel launch");
}

}  // namespace cuda
}  // namespace geowidth
