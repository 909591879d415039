#include "cpu/distances.h"

#include "bindings/bindings.h"

namespace geowidth {
namespace {

// out and mirror: addresses of the (n, m) and (m, n) results for raw, spherical, hyperbolic; 0 where not wanted.
template <typename T>
void distances(Address x, int64_t n, Address y, int64_t m, int64_t depth, const std::array<Address, 3>& out,
               int64_t stride, const std::array<Address, 3>& mirror, int64_t mirror_stride, double scale, double near,
               bool symmetric, int threads) {
  Targets<T> targets{{}, {}, stride, mirror_stride, scale, near, symmetric};
  for (int g = 0; g < 3; ++g) {
    targets.out[g] = pointer<T>(out[g]);
    targets.mirror[g] = pointer<T>(mirror[g]);
  }
  pairwise_distances<T>(pointer<const T>(x), n, pointer<const T>(y), m, depth, targets, threads);
}

}  // namespace

void bind_distances(py::module_& module) {
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, py::arg("x"), py::arg("n"), py::arg("y"), py::arg("m"), py::arg("depth"),
               py::arg("out"), py::arg("stride"), py::arg("mirror"), py::arg("mirror_stride"), py::arg("scale"),
               py::arg("near"), py::arg("symmetric"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());
  };
  define("distances_float32", &distances<float>);
  define("distances_float64", &distances<double>);
}

}  // namespace geowidth
