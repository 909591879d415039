#include "distances.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <string>

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

template <typename T>
CloudArguments<T> cloud(Address rows, int64_t count, int64_t depth, Address square, Address inverse) {
  return {pointer<const T>(rows), count, depth, pointer<double>(square), pointer<double>(inverse)};
}

template <typename T>
void rows(Address x, int64_t n, int64_t depth, Address square_x, Address inverse_x, double smallest, double largest,
          Address facts, Address stream) {
  survey_rows(cloud<T>(x, n, depth, square_x, inverse_x), smallest, largest, pointer<CloudFacts>(facts),
              stream_of(stream));
}

template <typename T>
void pairs(Address x, int64_t n, Address y, int64_t m, int64_t depth, Address square_x, Address square_y,
           Address inverse_x, Address inverse_y, int samples, double near, bool raw, bool angular, bool symmetric,
           Address facts, Address stream) {
  survey_pairs(cloud<T>(x, n, depth, square_x, inverse_x), cloud<T>(y, m, depth, square_y, inverse_y), samples, near,
               raw, angular, symmetric, pointer<CloudFacts>(facts), stream_of(stream));
}

template <typename T, typename G, typename O>
void distances(Address gram, int64_t stride, int64_t row, int64_t end, int64_t column, Address x, Address y,
               Address square_x, Address square_y, Address inverse_x, Address inverse_y, int64_t m, int64_t depth,
               const std::array<Address, 3>& out, double scale, double near, bool symmetric, Address stream) {
  distance_epilogue(
      DistanceArguments<T, G, O>{pointer<const G>(gram),
                                 stride,
                                 row,
                                 end,
                                 column,
                                 pointer<const T>(x),
                                 pointer<const T>(y),
                                 pointer<const double>(square_x),
                                 pointer<const double>(square_y),
                                 pointer<const double>(inverse_x),
                                 pointer<const double>(inverse_y),
                                 m,
                                 depth,
                                 {pointer<O>(out[0]), pointer<O>(out[1]), pointer<O>(out[2])},
                                 scale,
                                 near,
                                 symmetric},
      stream_of(stream));
}

template <typename T>
void define_surveys(py::module_& module, const std::string& dtype) {
  module.def(("survey_rows_" + dtype).c_str(), &rows<T>, py::arg("x"), py::arg("n"), py::arg("depth"),
             py::arg("square_x"), py::arg("inverse_x"), py::arg("smallest"), py::arg("largest"), py::arg("facts"),
             py::arg("stream"), py::call_guard<py::gil_scoped_release>());
  module.def(("survey_pairs_" + dtype).c_str(), &pairs<T>, py::arg("x"), py::arg("n"), py::arg("y"), py::arg("m"),
             py::arg("depth"), py::arg("square_x"), py::arg("square_y"), py::arg("inverse_x"), py::arg("inverse_y"),
             py::arg("samples"), py::arg("near"), py::arg("raw"), py::arg("angular"), py::arg("symmetric"),
             py::arg("facts"), py::arg("stream"), py::call_guard<py::gil_scoped_release>());
}

template <typename T, typename G, typename O>
void define_distances(py::module_& module, const std::string& dtypes) {
  module.def(("distances_" + dtypes).c_str(), &distances<T, G, O>, py::arg("gram"), py::arg("stride"), py::arg("row"),
             py::arg("end"), py::arg("column"), py::arg("x"), py::arg("y"), py::arg("square_x"), py::arg("square_y"),
             py::arg("inverse_x"), py::arg("inverse_y"), py::arg("m"), py::arg("depth"), py::arg("out"),
             py::arg("scale"), py::arg("near"), py::arg("symmetric"), py::arg("stream"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace

// Names end in the dtype of the rows and, where there is a choice, of the Gram matrix.
void bind_distances(py::module_& module) {
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
