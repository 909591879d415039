// Each op binds itself in a file of its own; module.cpp calls them all.
#pragma once

#include "bindings/arrays.h"

namespace geowidth {

void bind_distances(py::module_& module);
void bind_ffn(py::module_& module);
void bind_gromov(py::module_& module);
void bind_sinkhorn(py::module_& module);
void bind_topology(py::module_& module);

}  // namespace geowidth
