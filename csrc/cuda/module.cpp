// geowidth._cuda: launches of the CUDA kernels. The Python ops have checked shapes, dtypes and devices. Importing this
// needs no driver and no GPU.
#include "cuda/bindings.h"

#ifndef GEOWIDTH_CUDA_PTX
#define GEOWIDTH_CUDA_PTX ""  // an architecture, where a build keeps one's PTX for newer GPUs
#endif

PYBIND11_MODULE(_cuda, module) {
  namespace py = pybind11;
  module.doc() = "GeoWidth's CUDA kernels. Call them through geowidth.ops, which checks arguments.";
  module.def("build_information", [] {
    py::dict information;
    information["architectures"] = GEOWIDTH_CUDA_ARCHITECTURES;
    information["ptx"] = GEOWIDTH_CUDA_PTX;
    information["runtime"] = CUDART_VERSION;
    return information;
  });
  // 1000 major + 10 minor of the newest CUDA that the driver serves; 0 without a driver. Never throws.
  module.def("driver_version", [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
  });
  module.def("cooperative_launch", [](int device) {
    int able = 0;
    return cudaDeviceGetAttribute(&able, cudaDevAttrCooperativeLaunch, device) == cudaSuccess && able != 0;
  });
  geowidth::cuda::bind_distances(module);
  geowidth::cuda::bind_gromov(module);
  geowidth::cuda::bind_sinkhorn(module);
}
