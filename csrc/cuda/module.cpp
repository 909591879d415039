// geowidth._cuda: launches of the CUDA kernels. The Python ops have checked shapes, dtypes and devices. Importing this
// needs no driver and no GPU.
#include "cuda/bindings.h"

PYBIND11_MODULE(_cuda, module) {
  namespace py = pybind11;
  module.doc() = "GeoWidth's CUDA kernels. Call them through geowidth.ops, which checks arguments.";
  module.def("build_information", [] {
    py::dict information;
    information["architectures"] = GEOWIDTH_CUDA_ARCHITECTURES;
    information["runtime"] = CUDART_VERSION;
    return information;
  });
  geowidth::cuda::bind_distances(module);
  geowidth::cuda::bind_gromov(module);
  geowidth::cuda::bind_sinkhorn(module);
}
