#include "cpu/dispatch.h"

#include <cstdlib>
#include <cstring>

namespace geowidth {
namespace {

bool runs(Variant v) {
#if defined(GEOWIDTH_X86)
  __builtin_cpu_init();
  if (v == Variant::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (v == Variant::avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return v == Variant::portable;
}

Variant choose() {
  const char* asked = std::getenv("GEOWIDTH_CPU_VARIANT");
  const Variant order[] = {Variant::avx512, Variant::avx2, Variant::portable};
  for (Variant v : order)
    if (asked && std::strcmp(asked, variant_name(v)) == 0 && runs(v)) return v;
  for (Variant v : order)
    if (runs(v)) return v;
  return Variant::portable;
}

}  // namespace

Variant variant() {
  static const Variant chosen = choose();
  return chosen;
}

const char* variant_name(Variant v) {
  return v == Variant::avx512 ? "avx512" : v == Variant::avx2 ? "avx2" : "portable";
}

}  // namespace geowidth
