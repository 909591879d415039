#include "cpu/gromov.h"

#include "bindings/bindings.h"
#include "cpu/assignment.h"
#include "cpu/product.h"

namespace geowidth {
namespace {

py::tuple bound_assignment(Address cost, int64_t n, int64_t stride, bool use_duals, Address column,
                           Address column_dual, Address row_dual) {
  AssignmentStatistics s;
  {
    py::gil_scoped_release release;
    s = solve_assignment(pointer<const double>(cost), n, stride, use_duals, pointer<int64_t>(column),
                         pointer<double>(column_dual), pointer<double>(row_dual));
  }
  return py::make_tuple(s.sweeps, s.kept, s.augmented);
}

double bound_square_difference(Address a, int64_t stride_a, Address b, int64_t stride_b, Address row, Address column,
                               int64_t n, bool is_double, int threads) {
  const int64_t* rows = pointer<const int64_t>(row);
  const int64_t* columns = pointer<const int64_t>(column);
  if (is_double)
    return matched_square_difference(pointer<const double>(a), stride_a, pointer<const double>(b), stride_b, rows,
                                     columns, n, threads);
  return matched_square_difference(pointer<const float>(a), stride_a, pointer<const float>(b), stride_b, rows, columns,
                                   n, threads);
}

py::tuple bound_fault(Address c, int64_t n, int64_t stride, bool is_double, double tolerance, int threads) {
  int64_t i = 0, j = 0;
  Fault fault;
  {
    py::gil_scoped_release release;
    fault = is_double ? symmetric_fault(pointer<const double>(c), n, stride, tolerance, threads, &i, &j)
                      : symmetric_fault(pointer<const float>(c), n, stride, tolerance, threads, &i, &j);
  }
  return py::make_tuple(static_cast<int>(fault), i, j);
}

int64_t bound_swaps(Address d1, Address d2, Address cost, Address column, int64_t n, double least, int64_t most,
                    int threads) {
  return improve_by_swaps(pointer<const double>(d1), pointer<const double>(d2), pointer<double>(cost),
                          pointer<int64_t>(column), n, least, most, threads);
}

void bound_product(Address a, Address b, Address row, Address u, Address v, double scale, int64_t n, Address out,
                   int threads) {
  scaled_product(pointer<const double>(a), pointer<const double>(b), pointer<const int64_t>(row),
                 pointer<const double>(u), pointer<const double>(v), scale, n, pointer<double>(out), threads);
}

}  // namespace

void bind_gromov(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("solve_assignment", &bound_assignment, py::arg("cost"), py::arg("n"), py::arg("stride"),
             py::arg("use_duals"), py::arg("column"), py::arg("column_dual"), py::arg("row_dual"));
  module.def("matched_square_difference", &bound_square_difference, py::arg("a"), py::arg("stride_a"), py::arg("b"),
             py::arg("stride_b"), py::arg("row"), py::arg("column"), py::arg("n"), py::arg("is_double"),
             py::arg("threads"), release);
  module.def("own_product_pays", &own_product_pays);
  module.def("scaled_product", &bound_product, py::arg("a"), py::arg("b"), py::arg("row"), py::arg("u"), py::arg("v"),
             py::arg("scale"), py::arg("n"), py::arg("out"), py::arg("threads"), release);
  module.def("symmetric_fault", &bound_fault, py::arg("c"), py::arg("n"), py::arg("stride"), py::arg("is_double"),
             py::arg("tolerance"), py::arg("threads"));
  module.def("improve_by_swaps", &bound_swaps, py::arg("d1"), py::arg("d2"), py::arg("cost"), py::arg("column"),
             py::arg("n"), py::arg("least"), py::arg("most"), py::arg("threads"), release);
}

}  // namespace geowidth
