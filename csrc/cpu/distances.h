// Distance matrices of three geometries from one float64 Gram matrix that is never stored.
//
// Rows are packed as doubles into panels of `panel` rows, column by column. A tile of the Gram matrix is accumulated in
// cache, each entry in one accumulator over the columns in order: its bits depend on the two rows alone, not on the
// tile, the thread, or the matrix around it. The epilogue turns a strip of the tile into the distances asked for,
// computes again from the raw rows what lies too close for the Gram form, and writes the strip and, if wanted, its
// mirror image.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

constexpr int64_t panel = 24;  // rows of a packed panel
constexpr int64_t tile_panels = 8;
constexpr int64_t tile = panel * tile_panels;  // rows and columns of a Gram tile
constexpr int64_t strip_rows = 16;

// One matrix (rows, depth) of the caller's and where its packed form begins.
template <typename T>
struct Rows {
  const T* data;  // row-major, contiguous
  int64_t count, depth;
  const double* packed;
  const double* square;   // |row|^2, padded to whole tiles
  const double* inverse;  // 1 / |row|, likewise
};

// The results wanted; null where not. `mirror` receives the transpose (of a symmetric matrix's upper triangle, say).
template <typename T>
struct Targets {
  T* out[3];  // raw, spherical, hyperbolic
  T* mirror[3];
  int64_t stride, mirror_stride;
  double scale;    // r / (1 - r^2)
  double near;     // share of the squared norms' sum under which a pair is computed again from the raw rows
  bool symmetric;  // y is x: upper triangle only, diagonal 0
};

// Rows [row, row + rows) against columns [column, column + columns) of one tile.
template <typename T>
struct Strip {
  const double* gram;  // tile entries, row stride `tile`
  int64_t row, rows, column, columns;
  const Rows<T>* x;
  const Rows<T>* y;
  const Targets<T>* targets;
  T* result[3];  // (strip_rows, tile) each
};

// Native op. Returns nothing; throws std::bad_alloc if there is no memory for the packed rows.
template <typename T>
void pairwise_distances(const T* x, int64_t n, const T* y, int64_t m, int64_t depth, const Targets<T>& targets,
                        int threads);

}  // namespace geowidth

GEOWIDTH_DECLARE(void gram_tile(const double* a, const double* b, int64_t depth, int64_t a_panels, int64_t b_panels,
                                bool triangle, double* gram))
GEOWIDTH_DECLARE(void distance_strip(const Strip<float>& strip); void distance_strip(const Strip<double>& strip))
