// What the bindings of geowidth._cuda share. Arrays lie in device memory, `stream` is a cudaStream_t.
#pragma once

#include <cuda_runtime.h>

#include "bindings/arrays.h"

namespace geowidth {
namespace cuda {

inline cudaStream_t stream_of(std::uintptr_t address) { return reinterpret_cast<cudaStream_t>(address); }

void bind_distances(py::module_& module);
void bind_gromov(py::module_& module);
void bind_sinkhorn(py::module_& module);

}  // namespace cuda
}  // namespace geowidth
