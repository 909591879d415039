#include "distances.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <string>

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

// CloudArguments, of whatever type the rows have.
struct Cloud {
  Table rows;
  Address square, inverse;

  template <typename T>
  CloudArguments<T> as() const {
    return {rows.data, rows.rows, rows.columns, square, inverse};
  }
};

// Rows [row, end) against the columns from `column` on, and their Gram matrix.
struct Panel {
  Table gram;
  int64_t row, end, column;
};

template <typename T>
void rows(const Cloud& x, double smallest, double largest, Address facts, std::uintptr_t stream) {
  survey_rows(x.as<T>(), smallest, largest, facts, stream_of(stream));
}

template <typename T>
void pairs(const Cloud& x, const Cloud& y, bool symmetric, int samples, double near, bool raw, bool angular,
           Address facts, std::uintptr_t stream) {
  survey_pairs(x.as<T>(), y.as<T>(), samples, near, raw, angular, symmetric, facts, stream_of(stream));
}

template <typename T, typename G, typename O>
void distances(const Cloud& x, const Cloud& y, bool symmetric, const Panel& panel, const std::array<Address, 3>& out,
               double scale, double near, std::uintptr_t stream) {
  distance_epilogue(DistanceArguments<T, G, O>{panel.gram.data,
                                               panel.gram.stride,
                                               panel.row,
                                               panel.end,
                                               panel.column,
                                               x.rows.data,
                                               y.rows.data,
                                               x.square,
                                               y.square,
                                               x.inverse,
                                               y.inverse,
                                               y.rows.rows,
                                               x.rows.columns,
                                               {out[0], out[1], out[2]},
                                               scale,
                                               near,
                                               symmetric},
                    stream_of(stream));
}

template <typename T>
void define_surveys(py::module_& module, const std::string& dtype) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def(("survey_rows_" + dtype).c_str(), &rows<T>, py::arg("x"), py::arg("smallest"), py::arg("largest"),
             py::arg("facts"), py::arg("stream"), release);
  module.def(("survey_pairs_" + dtype).c_str(), &pairs<T>, py::arg("x"), py::arg("y"), py::arg("symmetric"),
             py::arg("samples"), py::arg("near"), py::arg("raw"), py::arg("angular"), py::arg("facts"),
             py::arg("stream"), release);
}

template <typename T, typename G, typename O>
void define_distances(py::module_& module, const std::string& dtypes) {
  module.def(("distances_" + dtypes).c_str(), &distances<T, G, O>, py::arg("x"), py::arg("y"), py::arg("symmetric"),
             py::arg("panel"), py::arg("out"), py::arg("scale"), py::arg("near"), py::arg("stream"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace

// Names end in the dtype of the rows and, where there is a choice, of the Gram matrix. out: for raw, spherical,
// hyperbolic; None where not wanted.
void bind_distances(py::module_& module) {
  py::class_<Cloud>(module, "Cloud", py::module_local())
      .def(py::init<Table, Address, Address>(), py::arg("rows"), py::arg("square"), py::arg("inverse"));
  py::class_<Panel>(module, "Panel", py::module_local())
      .def(py::init<Table, int64_t, int64_t, int64_t>(), py::arg("gram"), py::arg("row"), py::arg("end"),
           py::arg("column"));
  define_surveys<double>(module, "float64");
  define_surveys<float>(module, "float32");
  define_surveys<__half>(module, "float16");
  define_surveys<__nv_bfloat16>(module, "bfloat16");
  define_distances<double, double, double>(module, "float64_float64");
  define_distances<float, double, float>(module, "float32_float64");
  define_distances<float, float, float>(module, "float32_float32");
  define_distances<__half, float, float>(module, "float16_float32");
  define_distances<__nv_bfloat16, float, float>(module, "bfloat16_float32");
}

}  // namespace cuda
}  // namespace geowidth
