// kernels/cuda/distances.cu as a C library for ctypes.
#include "distances.cu"

namespace {

template <typename T>
int run(const double* gram, const void* x, const void* y, const double* square_x, const double* square_y, int64_t n,
        int64_t m, int64_t depth, void* const* out, double scale, double near, int symmetric) {
  try {
    geowidth::cuda::DistanceArguments<T> arguments{
        gram, static_cast<const T*>(x), static_cast<const T*>(y), square_x, square_y, n, m, depth,
        {static_cast<T*>(out[0]), static_cast<T*>(out[1]), static_cast<T*>(out[2])}, scale, near, symmetric != 0};
    geowidth::cuda::distance_epilogue(arguments, nullptr);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

extern "C" {
int distances_float32(const double* gram, const void* x, const void* y, const double* square_x, const double* square_y,
                      int64_t n, int64_t m, int64_t depth, void* const* out, double scale, double near, int symmetric) {
  return run<float>(gram, x, y, square_x, square_y, n, m, depth, out, scale, near, symmetric);
}
int distances_float64(const double* gram, const void* x, const void* y, const double* square_x, const double* square_y,
                      int64_t n, int64_t m, int64_t depth, void* const* out, double scale, double near, int symmetric) {
  return run<double>(gram, x, y, square_x, square_y, n, m, depth, out, scale, near, symmetric);
}
}
