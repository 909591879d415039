// What the bindings of geowidth._cuda share. Addresses are device memory, `stream` is a cudaStream_t.
#pragma once

#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

namespace geowidth {
namespace cuda {

namespace py = pybind11;

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

inline cudaStream_t stream_of(Address address) { return reinterpret_cast<cudaStream_t>(address); }

void bind_distances(py::module_& module);
void bind_gromov(py::module_& module);
void bind_sinkhorn(py::module_& module);

}  // namespace cuda
}  // namespace geowidth
