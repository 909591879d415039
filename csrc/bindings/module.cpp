#include "bindings/bindings.h"
#include "cpu/dispatch.h"
#include "cpu/thread_pool.h"

namespace py = pybind11;

namespace {

py::dict build_information() {
  py::dict information;
  information["compiler"] = GEOWIDTH_COMPILER " " __VERSION__;
  information["variant"] = geowidth::variant_name(geowidth::variant());
#if defined(GEOWIDTH_X86)
  information["variants"] = py::make_tuple("portable", "avx2", "avx512");
#else
  information["variants"] = py::make_tuple("portable");
#endif
  return information;
}

// Sums i over [0, count) by parallel_for, for the thread pool's own test.
int64_t parallel_sum(int64_t count, int64_t grain, int threads, int64_t fail_at) {
  std::vector<int64_t> value(count, 0);
  geowidth::parallel_for(count, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i == fail_at) throw std::runtime_error("asked to fail");
      value[i] = i;
    }
  });
  int64_t sum = 0;
  for (int64_t v : value) sum += v;
  return sum;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "GeoWidth's CPU kernels. Call them through geowidth.ops and geowidth.measure, which check arguments.";
  geowidth::bind_ffn(module);
  geowidth::bind_gromov(module);
  geowidth::bind_sinkhorn(module);
  module.def("build_information", &build_information);
  module.def("parallel_sum", &parallel_sum, py::arg("count"), py::arg("grain"), py::arg("threads"),
             py::arg("fail_at") = -1, py::call_guard<py::gil_scoped_release>());
  geowidth::bind_distances(module);
  geowidth::bind_topology(module);
}
