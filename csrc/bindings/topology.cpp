#include <pybind11/numpy.h>

#include "bindings/bindings.h"
#include "cpu/diagram_distance.h"
#include "cpu/persistence.h"

namespace geowidth {
namespace {

using Doubles = py::array_t<double, py::array::c_style>;

DistanceRows rows_of(const Doubles& distances) { return {distances.data(), distances.shape(0), distances.shape(1)}; }

Diagram diagram_of(const Doubles& bars) { return {bars.data(), bars.shape(0)}; }

// Bars as an array (k, 2).
Doubles persistence(const Doubles& distances, double threshold) {
  const DistanceRows rows = rows_of(distances);
  std::vector<double> bars;
  {
    py::gil_scoped_release release;
    bars = degree_one_persistence(rows, threshold);
  }
  Doubles result({static_cast<py::ssize_t>(bars.size() / 2), py::ssize_t{2}});
  std::copy(bars.begin(), bars.end(), result.mutable_data());
  return result;
}

bool in_order(const Doubles& distances) {
  const DistanceRows rows = rows_of(distances);
  py::gil_scoped_release release;
  return is_distance_matrix(rows);
}

// The distance and, for each bar of a, the bar of b it is matched to, or -1.
py::tuple distance(const Doubles& a, const Doubles& b, bool sup) {
  const Diagram first = diagram_of(a), second = diagram_of(b);
  py::array_t<int64_t> partner(a.shape(0));
  int64_t* places = partner.mutable_data();
  double found;
  {
    py::gil_scoped_release release;
    found = diagram_distance(first, second, sup ? GroundNorm::sup : GroundNorm::euclidean, places);
  }
  return py::make_tuple(found, partner);
}

}  // namespace

// distances: (n, n); a, b: (k, 2).
void bind_topology(py::module_& module) {
  module.def("degree_one_persistence", &persistence, py::arg("distances"), py::arg("threshold"));
  module.def("is_distance_matrix", &in_order, py::arg("distances"));
  module.def("diagram_distance", &distance, py::arg("a"), py::arg("b"), py::arg("sup"));
}

}  // namespace geowidth
