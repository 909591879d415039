#include "cpu/gromov.h"

#include "bindings/bindings.h"
#include "cpu/assignment.h"
#include "cpu/product.h"

namespace geowidth {
namespace {

py::tuple bound_assignment(const Table& cost, bool use_duals, Address column, Address column_dual, Address row_dual) {
  AssignmentStatistics s;
  {
    py::gil_scoped_release release;
    s = solve_assignment(cost.data, cost.rows, cost.stride, use_duals, column, column_dual, row_dual);
  }
  return py::make_tuple(s.sweeps, s.kept, s.augmented);
}

double bound_square_difference(const Table& a, const Table& b, Address row, Address column, int threads) {
  const auto of = [&](auto number) {
    using T = decltype(number);
    return matched_square_difference<T>(a.data, a.stride, b.data, b.stride, row, column, a.rows, threads);
  };
  return a.is_double() ? of(double()) : of(float());
}

py::tuple bound_fault(const Table& c, double tolerance, int threads) {
  int64_t i = 0, j = 0;
  Fault fault;
  {
    py::gil_scoped_release release;
    fault = c.is_double() ? symmetric_fault<double>(c.data, c.rows, c.stride, tolerance, threads, &i, &j)
                          : symmetric_fault<float>(c.data, c.rows, c.stride, tolerance, threads, &i, &j);
  }
  return py::make_tuple(static_cast<int>(fault), i, j);
}

int64_t bound_swaps(Address d1, Address d2, const Table& cost, Address column, double least, int64_t most,
                    int threads) {
  return improve_by_swaps(d1, d2, cost.data, column, cost.rows, least, most, threads);
}

void bound_product(Address a, Address b, Address row, Address u, Address v, double scale, const Table& out,
                   int threads) {
  scaled_product(a, b, row, u, v, scale, out.rows, out.data, threads);
}

}  // namespace

void bind_gromov(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("solve_assignment", &bound_assignment, py::arg("cost"), py::arg("use_duals"), py::arg("column"),
             py::arg("column_dual"), py::arg("row_dual"));
  module.def("matched_square_difference", &bound_square_difference, py::arg("a"), py::arg("b"), py::arg("row"),
             py::arg("column"), py::arg("threads"), release);
  module.def("own_product_pays", &own_product_pays);
  module.def("scaled_product", &bound_product, py::arg("a"), py::arg("b"), py::arg("row"), py::arg("u"), py::arg("v"),
             py::arg("scale"), py::arg("out"), py::arg("threads"), release);
  module.def("symmetric_fault", &bound_fault, py::arg("c"), py::arg("tolerance"), py::arg("threads"));
  module.def("improve_by_swaps", &bound_swaps, py::arg("d1"), py::arg("d2"), py::arg("cost"), py::arg("column"),
             py::arg("least"), py::arg("most"), py::arg("threads"), release);
}

}  // namespace geowidth
