#include "bindings/bindings.h"
#include "cpu/diagram_distance.h"
#include "cpu/persistence.h"

namespace geowidth {
namespace {

// Bars as an array (k, 2); `distances` is the address of n rows of `stride` doubles.
py::array_t<double> persistence(Address distances, int64_t n, int64_t stride, double threshold) {
  std::vector<double> bars;
  {
    py::gil_scoped_release release;
    bars = degree_one_persistence({pointer<const double>(distances), n, stride}, threshold);
  }
  py::array_t<double> result({static_cast<py::ssize_t>(bars.size() / 2), py::ssize_t{2}});
  std::copy(bars.begin(), bars.end(), result.mutable_data());
  return result;
}

bool in_order(Address distances, int64_t n, int64_t stride) {
  return is_distance_matrix({pointer<const double>(distances), n, stride});
}

double distance(Address a, int64_t size_a, Address b, int64_t size_b, bool sup, Address partner) {
  return diagram_distance({pointer<const double>(a), size_a}, {pointer<const double>(b), size_b},
                          sup ? GroundNorm::sup : GroundNorm::euclidean, pointer<int64_t>(partner));
}

}  // namespace

void bind_topology(py::module_& module) {
  module.def("degree_one_persistence", &persistence, py::arg("distances"), py::arg("n"), py::arg("stride"),
             py::arg("threshold"));
  module.def("is_distance_matrix", &in_order, py::arg("distances"), py::arg("n"), py::arg("stride"),
             py::call_guard<py::gil_scoped_release>());
  module.def("diagram_distance", &distance, py::arg("a"), py::arg("size_a"), py::arg("b"), py::arg("size_b"),
             py::arg("sup"), py::arg("partner"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace geowidth
