// Each op binds itself in a file of its own; module.cpp calls them all. Pointers cross as integers: the Python op has
// checked shapes, dtypes, strides and devices before it calls.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

namespace py = pybind11;

namespace geowidth {

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

void bind_distances(py::module_& module);
void bind_ffn(py::module_& module);
void bind_gromov(py::module_& module);
void bind_sinkhorn(py::module_& module);
void bind_topology(py::module_& module);

}  // namespace geowidth
