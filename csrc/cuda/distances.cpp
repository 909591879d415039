#include "distances.h"

#include <array>

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

template <typename T>
void distances(Address gram, Address x, Address y, Address square_x, Address square_y, int64_t n, int64_t m,
               int64_t depth, const std::array<Address, 3>& out, double scale, double near, bool symmetric,
               Address stream) {
  distance_epilogue(
      DistanceArguments<T>{pointer<const double>(gram),
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
                           symmetric},
      stream_of(stream));
}

}  // namespace

void bind_distances(py::module_& module) {
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("gram"), py::arg("x"), py::arg("y"), py::arg("square_x"), py::arg("square_y"),
               py::arg("n"), py::arg("m"), py::arg("depth"), py::arg("out"), py::arg("scale"), py::arg("near"),
               py::arg("symmetric"), py::arg("stream"), py::call_guard<py::gil_scoped_release>());
  };
  define("distances_float32", &distances<float>);
  define("distances_float64", &distances<double>);
}

}  // namespace cuda
}  // namespace geowidth
