#include "gromov.h"

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

template <typename T>
void bound_symmetry(Address c, int64_t stride, int64_t n, Address scratch, Address out, Address stream) {
  symmetry(pointer<const T>(c), stride, n, pointer<double>(scratch), pointer<double>(out), stream_of(stream));
}

template <typename T>
void bound_centre(Address c, int64_t stride, int64_t n, Address means, Address centred_means, Address squares,
                  Address d, Address scratch, Address out, Address stream) {
  centre(pointer<const T>(c), stride, n, pointer<double>(means), pointer<double>(centred_means),
         pointer<double>(squares), pointer<double>(d), pointer<double>(scratch), pointer<double>(out),
         stream_of(stream));
}

template <typename T>
void bound_square_difference(Address a, int64_t stride_a, Address b, int64_t stride_b, Address row, Address column,
                             int64_t n, Address scratch, Address out, Address stream) {
  square_difference(pointer<const T>(a), stride_a, pointer<const T>(b), stride_b, pointer<const int64_t>(row),
                    pointer<const int64_t>(column), n, pointer<double>(scratch), pointer<double>(out),
                    stream_of(stream));
}

void bound_certificate(Address cost, int64_t stride, int64_t n, Address home, Address row_minima, Address v,
                       Address scratch, Address lowered, Address out, Address stream) {
  certificate(pointer<const double>(cost), stride, n, pointer<const int64_t>(home), pointer<double>(row_minima),
              pointer<double>(v), pointer<double>(scratch), pointer<unsigned>(lowered), pointer<double>(out),
              stream_of(stream));
}

void bound_best_exchange(Address d1, Address d2, Address cost, Address column, Address own, Address square1,
                         Address square2, int64_t n, Address scratch, Address out, Address stream) {
  best_exchange(pointer<const double>(d1), pointer<const double>(d2), pointer<const double>(cost),
                pointer<const int64_t>(column), pointer<const double>(own), pointer<const double>(square1),
                pointer<const double>(square2), n, pointer<double>(scratch), pointer<double>(out), stream_of(stream));
}

template <typename T>
void bind_typed(py::module_& module, const std::string& type) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def(("symmetry_" + type).c_str(), &bound_symmetry<T>, py::arg("c"), py::arg("stride"), py::arg("n"),
             py::arg("scratch"), py::arg("out"), py::arg("stream"), release);
  module.def(("centre_" + type).c_str(), &bound_centre<T>, py::arg("c"), py::arg("stride"), py::arg("n"),
             py::arg("means"), py::arg("centred_means"), py::arg("squares"), py::arg("d"), py::arg("scratch"),
             py::arg("out"), py::arg("stream"), release);
  module.def(("square_difference_" + type).c_str(), &bound_square_difference<T>, py::arg("a"), py::arg("stride_a"),
             py::arg("b"), py::arg("stride_b"), py::arg("row"), py::arg("column"), py::arg("n"), py::arg("scratch"),
             py::arg("out"), py::arg("stream"), release);
}

}  // namespace

void bind_gromov(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  bind_typed<float>(module, "float32");
  bind_typed<double>(module, "float64");
  module.def("assignment_certificate", &bound_certificate, py::arg("cost"), py::arg("stride"), py::arg("n"),
             py::arg("home"), py::arg("row_minima"), py::arg("v"), py::arg("scratch"), py::arg("lowered"),
             py::arg("out"), py::arg("stream"), release);
  module.def("best_exchange", &bound_best_exchange, py::arg("d1"), py::arg("d2"), py::arg("cost"), py::arg("column"),
             py::arg("own"), py::arg("square1"), py::arg("square2"), py::arg("n"), py::arg("scratch"), py::arg("out"),
             py::arg("stream"), release);
  module.attr("tile_scratch") = tile_scratch;
  module.attr("most_sweeps") = most_sweeps;
}

}  // namespace cuda
}  // namespace geowidth
