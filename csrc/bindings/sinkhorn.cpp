#include "cpu/sinkhorn.h"

#include <array>

#include "bindings/bindings.h"

namespace geowidth {
namespace {

// The log-kernel scale * (x_ij + r_i s_j), of float or double as x is.
struct BoundKernel {
  Table x;
  Address r, s;
  double scale;

  template <typename T>
  LogKernel<T> as() const {
    return {x.data, r, s, static_cast<T>(scale), x.rows, x.columns};
  }
};

using Two = std::array<Address, 2>;
using Coupling = std::array<Address, 3>;  // k, u, v: the coupling is u_i k_ij v_j

py::tuple bound_sinkhorn(const BoundKernel& kernel, const Two& weights, const Two& potentials, const Coupling& coupling,
                         const SinkhornSettings& settings) {
  const auto run = [&](auto number) {
    using T = decltype(number);
    return sinkhorn<T>(kernel.as<T>(), weights[0], weights[1], potentials[0], potentials[1], coupling[0], coupling[1],
                       coupling[2], settings);
  };
  SinkhornOutcome outcome;
  {
    py::gil_scoped_release release;
    outcome = kernel.x.is_double() ? run(double()) : run(float());
  }
  return py::make_tuple(outcome.error, outcome.passes, outcome.entries, outcome.log_entries);
}

py::tuple bound_plan(const BoundKernel& kernel, const Coupling& coupling, Address old, Address plan, int threads) {
  const auto run = [&](auto number) {
    using T = decltype(number);
    return form_plan<T>(kernel.as<T>(), coupling[0], coupling[1], coupling[2], old, plan, threads);
  };
  PlanSums sums;
  {
    py::gil_scoped_release release;
    sums = kernel.x.is_double() ? run(double()) : run(float());
  }
  return py::make_tuple(sums.change, sums.inner, sums.linear);
}

double bound_inner(const Table& x, Address y, int threads) {
  return x.is_double() ? inner_product<double>(x.data, y, x.rows, x.columns, threads)
                       : inner_product<float>(x.data, y, x.rows, x.columns, threads);
}

void bound_marginals(const Table& x, Address rows, Address columns, int threads) {
  if (x.is_double())
    marginals<double>(x.data, x.rows, x.columns, rows, columns, threads);
  else
    marginals<float>(x.data, x.rows, x.columns, rows, columns, threads);
}

}  // namespace

// Matrices are contiguous.
void bind_sinkhorn(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<BoundKernel>(module, "LogKernel", py::module_local())
      .def(py::init<Table, Address, Address, double>(), py::arg("x"), py::arg("r"), py::arg("s"), py::arg("scale"));
  py::class_<SinkhornSettings>(module, "SinkhornSettings", py::module_local())
      .def(py::init<double, int64_t, int, int>(), py::arg("tolerance"), py::arg("most"), py::arg("memory"),
           py::arg("threads"));
  module.def("sinkhorn", &bound_sinkhorn, py::arg("kernel"), py::arg("weights"), py::arg("potentials"),
             py::arg("coupling"), py::arg("settings"));
  module.def("form_plan", &bound_plan, py::arg("kernel"), py::arg("coupling"), py::arg("old"), py::arg("plan"),
             py::arg("threads"));
  module.def("inner_product", &bound_inner, py::arg("x"), py::arg("y"), py::arg("threads"), release);
  module.def("marginals", &bound_marginals, py::arg("x"), py::arg("rows"), py::arg("columns"), py::arg("threads"),
             release);
}

}  // namespace geowidth
