#include "gromov.h"

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

void bound_symmetry(const Table& c, Address scratch, Address out, std::uintptr_t stream) {
  if (c.is_double())
    symmetry<double>(c.data, c.stride, c.rows, scratch, out, stream_of(stream));
  else
    symmetry<float>(c.data, c.stride, c.rows, scratch, out, stream_of(stream));
}

void bound_centre(const Table& c, Address means, Address centred_means, Address squares, Address d, Address scratch,
                  Address out, std::uintptr_t stream) {
  const auto run = [&](auto number) {
    centre<decltype(number)>(c.data, c.stride, c.rows, means, centred_means, squares, d, scratch, out,
                             stream_of(stream));
  };
  c.is_double() ? run(double()) : run(float());
}

void bound_square_difference(const Table& a, const Table& b, Address row, Address column, Address scratch, Address out,
                             std::uintptr_t stream) {
  const auto run = [&](auto number) {
    square_difference<decltype(number)>(a.data, a.stride, b.data, b.stride, row, column, a.rows, scratch, out,
                                        stream_of(stream));
  };
  a.is_double() ? run(double()) : run(float());
}

void bound_certificate(const Table& cost, Address home, Address row_minima, Address v, Address scratch, Address lowered,
                       Address out, std::uintptr_t stream) {
  certificate(cost.data, cost.stride, cost.rows, home, row_minima, v, scratch, lowered, out, stream_of(stream));
}

void bound_best_exchange(Address d1, Address d2, const Table& cost, Address column, Address own, Address square1,
                         Address square2, Address scratch, Address out, std::uintptr_t stream) {
  best_exchange(d1, d2, cost.data, column, own, square1, square2, cost.rows, scratch, out, stream_of(stream));
}

}  // namespace

void bind_gromov(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("symmetry", &bound_symmetry, py::arg("c"), py::arg("scratch"), py::arg("out"), py::arg("stream"), release);
  module.def("centre", &bound_centre, py::arg("c"), py::arg("means"), py::arg("centred_means"), py::arg("squares"),
             py::arg("d"), py::arg("scratch"), py::arg("out"), py::arg("stream"), release);
  module.def("square_difference", &bound_square_difference, py::arg("a"), py::arg("b"), py::arg("row"),
             py::arg("column"), py::arg("scratch"), py::arg("out"), py::arg("stream"), release);
  module.def("assignment_certificate", &bound_certificate, py::arg("cost"), py::arg("home"), py::arg("row_minima"),
             py::arg("v"), py::arg("scratch"), py::arg("lowered"), py::arg("out"), py::arg("stream"), release);
  module.def("best_exchange", &bound_best_exchange, py::arg("d1"), py::arg("d2"), py::arg("cost"), py::arg("column"),
             py::arg("own"), py::arg("square1"), py::arg("square2"), py::arg("scratch"), py::arg("out"),
             py::arg("stream"), release);
  module.attr("tile_scratch") = tile_scratch;
  module.attr("most_sweeps") = most_sweeps;
}

}  // namespace cuda
}  // namespace geowidth
