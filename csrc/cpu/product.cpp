#include "cpu/product.h"

#include <algorithm>

#include "cpu/distances.h"
#include "cpu/memory.h"
#include "cpu/thread_pool.h"

namespace geowidth {
namespace {

int64_t panels(int64_t count) { return (count + panel - 1) / panel; }

// Panels of `panel` rows of `a`, or columns of `b`, each (n, panel); what lies beyond the matrix is 0.
void pack_rows(const double* a, int64_t n, int64_t first, double* out) {
  const int64_t present = std::min(panel, n - first);
  if (present < panel) std::fill_n(out, n * panel, 0.0);
  for (int64_t k = 0; k < n; k += 8) {
    const int64_t end = std::min(n, k + 8);
    for (int64_t r = 0; r < present; ++r)
      for (int64_t c = k; c < end; ++c) out[c * panel + r] = a[(first + r) * n + c];
  }
}

void pack_columns(const double* b, const int64_t* row, int64_t n, int64_t first, double* out) {
  const int64_t present = std::min(panel, n - first);
  if (present < panel) std::fill_n(out, n * panel, 0.0);
  for (int64_t k = 0; k < n; ++k) std::copy_n(b + (row ? row[k] : k) * n + first, present, out + k * panel);
}

}  // namespace

bool own_product_pays() {
#if defined(GEOWIDTH_X86)
  return variant() == Variant::avx512 && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

void scaled_product(const double* a, const double* b, const int64_t* row, const double* u, const double* v,
                    double scale, int64_t n, double* out, int threads) {
  const int64_t count = panels(n), tiles = (n + tile - 1) / tile;
  const Buffer<double> right = allocate<double>(count * panel * n);
  parallel_for(count, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) pack_columns(b, row, n, p * panel, right.get() + p * panel * n);
  });
  advise_huge_pages(out, n * n * static_cast<int64_t>(sizeof(double)));
  // The rows of a tile are packed where it is computed: anew for each, unless a thread does a whole row of tiles.
  const int64_t shares = threads > 1 && tiles < 4 * threads ? tiles : 1, width = (tiles + shares - 1) / shares;
  parallel_for(tiles * shares, 1, threads, [&](int64_t begin, int64_t end) {
    thread_local const Buffer<double> gram = allocate<double>(tile * tile);
    const Buffer<double> left = allocate<double>(tile * n);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i0 = t / shares * tile, rows = std::min(tile, n - i0);
      for (int64_t p = 0; p < panels(rows); ++p) pack_rows(a, n, i0 + p * panel, left.get() + p * panel * n);
      for (int64_t j0 = t % shares * width * tile; j0 < std::min(n, (t % shares + 1) * width * tile); j0 += tile) {
        const int64_t columns = std::min(tile, n - j0);
        GEOWIDTH_DISPATCH(gram_tile, left.get(), right.get() + j0 * n, n, panels(rows), panels(columns), false,
                          gram.get());
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j)
            out[(i0 + i) * n + j0 + j] = scale * gram[i * tile + j] - u[i0 + i] * v[j0 + j];
      }
    }
  });
}

}  // namespace geowidth
