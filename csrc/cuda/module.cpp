// geowidth._cuda: launches of the CUDA kernels. Addresses are device memory, `stream` is a cudaStream_t; the Python op
// has checked shapes, dtypes and devices. Importing this needs no driver and no GPU.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>

#include "distances.h"

namespace py = pybind11;

namespace {

using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

template <typename T>
void distances(Address gram, Address x, Address y, Address square_x, Address square_y, int64_t n, int64_t m,
               int64_t depth, const std::array<Address, 3>& out, double scale, double near, bool symmetric,
               Address stream) {
  geowidth::cuda::DistanceArguments<T> arguments{pointer<const double>(gram),
                                                 pointer<const T>(x),
                                                 pointer<const T>(y),
                                                 pointer<const double>(square_x),
                                                 pointer<const double>(square_y),
                                                 n,
                                                 m,
                                                 depth,
                                                 {pointer<T>(out[0]), pointer<T>(out[1]), pointer<T>(out[2])},
                                                 scale,
                                                 near,
                                                 symmetric};
  geowidth::cuda::distance_epilogue(arguments, pointer<CUstream_st>(stream));
}

py::dict build_information() {
  py::dict information;
  information["architectures"] = GEOWIDTH_CUDA_ARCHITECTURES;
  information["runtime"] = CUDART_VERSION;
  return information;
}

}  // namespace

PYBIND11_MODULE(_cuda, module) {
  module.doc() = "GeoWidth's CUDA kernels. Call them through geowidth.ops, which checks arguments.";
  module.def("build_information", &build_information);
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("gram"), py::arg("x"), py::arg("y"), py::arg("square_x"), py::arg("square_y"),
               py::arg("n"), py::arg("m"), py::arg("depth"), py::arg("out"), py::arg("scale"), py::arg("near"),
               py::arg("symmetric"), py::arg("stream"), py::call_guard<py::gil_scoped_release>());
  };
  define("distances_float32", &distances<float>);
  define("distances_float64", &distances<double>);
}
