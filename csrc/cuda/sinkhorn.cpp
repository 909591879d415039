#include "sinkhorn.h"

#include <string>

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

// SinkhornArguments, of whatever type x has, and how many rows may stay in shared memory.
struct Problem {
  Table x;
  Address r, s;
  double scale;
  Address a, b, f, g, kernel, workspace, outcome;
  int64_t resident;

  template <typename T>
  SinkhornArguments<T> as() const {
    return {x.data, r, s, static_cast<T>(scale), x.rows, x.columns, a, b, f, g, kernel, workspace, outcome};
  }
};

template <typename T>
py::dict shape(int64_t n, int64_t m, int64_t resident) {
  const SinkhornShape found = sinkhorn_shape<T>(n, m, resident);
  py::dict result;
  result["stride"] = found.stride;
  result["rows"] = found.rows;
  result["blocks"] = found.blocks;
  result["resident"] = found.resident;
  result["threads"] = found.threads;
  result["packs"] = found.packs;
  result["shared_bytes"] = found.shared_bytes;
  result["workspace_bytes"] = found.workspace_bytes;
  return result;
}

void solve(const Problem& problem, const SinkhornSettings& settings, std::uintptr_t stream) {
  if (problem.x.is_double())
    sinkhorn_solve(problem.as<double>(), settings, problem.resident, stream_of(stream));
  else
    sinkhorn_solve(problem.as<float>(), settings, problem.resident, stream_of(stream));
}

void plan(const Problem& problem, Address old, Address plan, std::uintptr_t stream) {
  if (problem.x.is_double())
    sinkhorn_plan<double>(problem.as<double>(), old, plan, problem.resident, stream_of(stream));
  else
    sinkhorn_plan<float>(problem.as<float>(), old, plan, problem.resident, stream_of(stream));
}

void inner(const Table& x, Address y, Address scratch, Address out, std::uintptr_t stream) {
  if (x.is_double())
    inner_product<double>(x.data, y, x.rows * x.columns, scratch, out, stream_of(stream));
  else
    inner_product<float>(x.data, y, x.rows * x.columns, scratch, out, stream_of(stream));
}

}  // namespace

// Matrices are contiguous, but for the kernel.
void bind_sinkhorn(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<Problem>(module, "SinkhornProblem", py::module_local())
      .def(py::init<Table, Address, Address, double, Address, Address, Address, Address, Address, Address, Address,
                    int64_t>(),
           py::kw_only(), py::arg("x"), py::arg("r"), py::arg("s"), py::arg("scale"), py::arg("a"), py::arg("b"),
           py::arg("f"), py::arg("g"), py::arg("kernel"), py::arg("workspace"), py::arg("outcome"),
           py::arg("resident"));
  py::class_<SinkhornSettings>(module, "SinkhornSettings", py::module_local())
      .def(py::init<double, int64_t, int>(), py::arg("tolerance"), py::arg("most"), py::arg("memory"));
  module.def("sinkhorn_shape_float32", &shape<float>, py::arg("n"), py::arg("m"), py::arg("resident"));
  module.def("sinkhorn_shape_float64", &shape<double>, py::arg("n"), py::arg("m"), py::arg("resident"));
  module.def("sinkhorn_solve", &solve, py::arg("problem"), py::arg("settings"), py::arg("stream"), unlocked);
  module.def("sinkhorn_plan", &plan, py::arg("problem"), py::arg("old"), py::arg("plan"), py::arg("stream"), unlocked);
  module.def("inner_product", &inner, py::arg("x"), py::arg("y"), py::arg("scratch"), py::arg("out"), py::arg("stream"),
             unlocked);
  module.attr("inner_product_scratch") = inner_product_scratch;
}

}  // namespace cuda
}  // namespace geowidth
