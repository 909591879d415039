#include "cpu/sinkhorn.h"

#include "bindings/bindings.h"

namespace geowidth {
namespace {

template <typename T>
LogKernel<T> log_kernel(Address x, Address r, Address s, double scale, int64_t n, int64_t m) {
  return {pointer<const T>(x), pointer<const T>(r), pointer<const T>(s), static_cast<T>(scale), n, m};
}

template <typename T>
SinkhornOutcome solve(const LogKernel<T>& kernel, Address a, Address b, Address f, Address g, Address k, Address u,
                      Address v, const SinkhornSettings& settings) {
  return sinkhorn<T>(kernel, pointer<const T>(a), pointer<const T>(b), pointer<T>(f), pointer<T>(g), pointer<T>(k),
                     pointer<T>(u), pointer<T>(v), settings);
}

py::tuple bound_sinkhorn(Address x, Address r, Address s, double scale, int64_t n, int64_t m, Address a, Address b,
                         Address f, Address g, Address k, Address u, Address v, bool is_double, double tolerance,
                         int64_t most, int memory, int threads) {
  SinkhornOutcome outcome;
  {
    py::gil_scoped_release release;
    const SinkhornSettings settings{tolerance, most, memory, threads};
    outcome = is_double ? solve(log_kernel<double>(x, r, s, scale, n, m), a, b, f, g, k, u, v, settings)
                        : solve(log_kernel<float>(x, r, s, scale, n, m), a, b, f, g, k, u, v, settings);
  }
  return py::make_tuple(outcome.error, outcome.passes, outcome.entries, outcome.log_entries);
}

template <typename T>
PlanSums plan_sums(const LogKernel<T>& kernel, Address k, Address u, Address v, Address old, Address plan, int threads) {
  return form_plan(kernel, pointer<const T>(k), pointer<const T>(u), pointer<const T>(v), pointer<const T>(old),
                   pointer<T>(plan), threads);
}

py::tuple bound_plan(Address x, Address r, Address s, int64_t n, int64_t m, Address k, Address u, Address v, Address old,
                     Address plan, bool is_double, int threads) {
  PlanSums sums;
  {
    py::gil_scoped_release release;
    sums = is_double ? plan_sums(log_kernel<double>(x, r, s, 0, n, m), k, u, v, old, plan, threads)
                     : plan_sums(log_kernel<float>(x, r, s, 0, n, m), k, u, v, old, plan, threads);
  }
  return py::make_tuple(sums.change, sums.inner, sums.linear);
}

double bound_inner(Address x, Address y, int64_t n, int64_t m, bool is_double, int threads) {
  return is_double ? inner_product(pointer<const double>(x), pointer<const double>(y), n, m, threads)
                   : inner_product(pointer<const float>(x), pointer<const float>(y), n, m, threads);
}

void bound_marginals(Address x, int64_t n, int64_t m, Address rows, Address columns, bool is_double, int threads) {
  if (is_double)
    marginals(pointer<const double>(x), n, m, pointer<double>(rows), pointer<double>(columns), threads);
  else
    marginals(pointer<const float>(x), n, m, pointer<double>(rows), pointer<double>(columns), threads);
}

}  // namespace

void bind_sinkhorn(py::module_& module) {
  module.def("sinkhorn", &bound_sinkhorn, py::arg("x"), py::arg("r"), py::arg("s"), py::arg("scale"), py::arg("n"),
             py::arg("m"), py::arg("a"), py::arg("b"), py::arg("f"), py::arg("g"), py::arg("k"), py::arg("u"),
             py::arg("v"), py::arg("is_double"), py::arg("tolerance"), py::arg("most"), py::arg("memory"),
             py::arg("threads"));
  module.def("form_plan", &bound_plan, py::arg("x"), py::arg("r"), py::arg("s"), py::arg("n"), py::arg("m"),
             py::arg("k"), py::arg("u"), py::arg("v"), py::arg("old"), py::arg("plan"), py::arg("is_double"),
             py::arg("threads"));
  module.def("inner_product", &bound_inner, py::arg("x"), py::arg("y"), py::arg("n"), py::arg("m"),
             py::arg("is_double"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());
  module.def("marginals", &bound_marginals, py::arg("x"), py::arg("n"), py::arg("m"), py::arg("rows"),
             py::arg("columns"), py::arg("is_double"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace geowidth
