// Picks, once per process, the instruction set that files named *.simd.cpp were compiled for.
//
// Such a file defines its functions inside `namespace geowidth::GEOWIDTH_VARIANT`. It must stay free of the standard
// library's templates: the linker keeps only one copy of an inline function, and that copy might be the AVX-512 one.
#pragma once

namespace geowidth {

enum class Variant { portable, avx2, avx512 };

// The best variant this processor runs, or the one GEOWIDTH_CPU_VARIANT names if the processor runs it.
Variant variant();
const char* variant_name(Variant);

}  // namespace geowidth

// Calls `function(arguments)` of the chosen variant: GEOWIDTH_DISPATCH(distance_tile, x, y, n)
#if defined(GEOWIDTH_X86)
#define GEOWIDTH_DISPATCH(function, ...)                                                            \
  (::geowidth::variant() == ::geowidth::Variant::avx512 ? ::geowidth::avx512::function(__VA_ARGS__) \
   : ::geowidth::variant() == ::geowidth::Variant::avx2 ? ::geowidth::avx2::function(__VA_ARGS__)   \
                                                        : ::geowidth::portable::function(__VA_ARGS__))
// Declares one function of a *.simd.cpp file in every variant's namespace.
#define GEOWIDTH_DECLARE(...) \
  namespace geowidth {        \
  namespace portable {        \
  __VA_ARGS__;                \
  }                           \
  namespace avx2 {            \
  __VA_ARGS__;                \
  }                           \
  namespace avx512 {          \
  __VA_ARGS__;                \
  }                           \
  }
#else
#define GEOWIDTH_DISPATCH(function, ...) (::geowidth::portable::function(__VA_ARGS__))
#define GEOWIDTH_DECLARE(...) \
  namespace geowidth {        \
  namespace portable {        \
  __VA_ARGS__;                \
  }                           \
  }
#endif
