#include "cpu/distances.h"

#include <array>

#include "bindings/bindings.h"

namespace geowidth {
namespace {

using Results = std::array<Table, 3>;  // for raw, spherical, hyperbolic; None where not wanted

template <typename T>
void distances(const Table& x, const Table& y, const Results& out, const Results& mirror, double scale, double near,
               bool symmetric, int threads) {
  Targets<T> targets{{}, {}, 0, 0, scale, near, symmetric};
  for (int g = 0; g < 3; ++g) {
    targets.out[g] = out[g].data;
    targets.mirror[g] = mirror[g].data;
    if (out[g].data.value) targets.stride = out[g].stride;
    if (mirror[g].data.value) targets.mirror_stride = mirror[g].stride;
  }
  pairwise_distances<T>(x.data, x.rows, y.data, y.rows, x.columns, targets, threads);
}

void bound_distances(const Table& x, const Table& y, const Results& out, const Results& mirror, double scale,
                     double near, bool symmetric, int threads) {
  const auto run = x.is_double() ? &distances<double> : &distances<float>;
  run(x, y, out, mirror, scale, near, symmetric, threads);
}

}  // namespace

// x, y: contiguous. out: (n, m) each, mirror: (m, n) each, all of one row stride.
void bind_distances(py::module_& module) {
  module.def("distances", &bound_distances, py::arg("x"), py::arg("y"), py::arg("out"), py::arg("mirror"),
             py::arg("scale"), py::arg("near"), py::arg("symmetric"), py::arg("threads"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace geowidth
