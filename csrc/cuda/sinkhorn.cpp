#include "sinkhorn.h"

#include <array>
#include <string>

#include "cuda/bindings.h"

namespace geowidth {
namespace cuda {
namespace {

// addresses: x, r, s, a, b, f, g, kernel, workspace, outcome.
template <typename T>
SinkhornArguments<T> arguments_of(const std::array<Address, 10>& p, double scale, int64_t n, int64_t m) {
  return {pointer<const T>(p[0]), pointer<const T>(p[1]),      pointer<const T>(p[2]), static_cast<T>(scale), n, m,
          pointer<const T>(p[3]), pointer<const T>(p[4]),      pointer<T>(p[5]),       pointer<T>(p[6]),
          pointer<T>(p[7]),       pointer<unsigned char>(p[8]), pointer<double>(p[9])};
}

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

template <typename T>
void solve(const std::array<Address, 10>& addresses, double scale, int64_t n, int64_t m, int64_t resident,
           double tolerance, int64_t most, int memory, Address stream) {
  sinkhorn_solve<T>(arguments_of<T>(addresses, scale, n, m), {tolerance, most, memory}, resident, stream_of(stream));
}

template <typename T>
void plan(const std::array<Address, 10>& addresses, double scale, int64_t n, int64_t m, int64_t resident, Address old,
          Address plan, Address stream) {
  sinkhorn_plan<T>(arguments_of<T>(addresses, scale, n, m), pointer<const T>(old), pointer<T>(plan), resident,
                   stream_of(stream));
}

template <typename T>
void inner(Address x, Address y, int64_t count, Address scratch, Address out, Address stream) {
  inner_product<T>(pointer<const T>(x), pointer<const T>(y), count, pointer<double>(scratch), pointer<double>(out),
                   stream_of(stream));
}

template <typename T>
void define(py::module_& module, const std::string& suffix) {
  const auto name = [&](const char* stem) { return stem + suffix; };
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.def(name("sinkhorn_shape_").c_str(), &shape<T>, py::arg("n"), py::arg("m"), py::arg("resident"));
  module.def(name("sinkhorn_solve_").c_str(), &solve<T>, py::arg("addresses"), py::arg("scale"), py::arg("n"),
             py::arg("m"), py::arg("resident"), py::arg("tolerance"), py::arg("most"), py::arg("memory"),
             py::arg("stream"), unlocked);
  module.def(name("sinkhorn_plan_").c_str(), &plan<T>, py::arg("addresses"), py::arg("scale"), py::arg("n"),
             py::arg("m"), py::arg("resident"), py::arg("old"), py::arg("plan"), py::arg("stream"), unlocked);
  module.def(name("inner_product_").c_str(), &inner<T>, py::arg("x"), py::arg("y"), py::arg("count"),
             py::arg("scratch"), py::arg("out"), py::arg("stream"), unlocked);
}

}  // namespace

void bind_sinkhorn(py::module_& module) {
  module.attr("inner_product_scratch") = inner_product_scratch;
  define<float>(module, "float32");
  define<double>(module, "float64");
}

}  // namespace cuda
}  // namespace geowidth
