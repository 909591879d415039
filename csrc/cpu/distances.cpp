#include "cpu/distances.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/memory.h"
#include "cpu/thread_pool.h"

namespace geowidth {
namespace {

int64_t tiles(int64_t rows) { return (rows + tile - 1) / tile; }

// Rows in packed form, with their squared norms and inverse norms.
template <typename T>
class Packed {
 public:
  Packed(const T* data, int64_t count, int64_t depth, int threads)
      : packed_(allocate<double>(panels(count) * panel * depth)), square_(allocate<double>(tiles(count) * tile)),
        inverse_(allocate<double>(tiles(count) * tile)),
        rows_{data, count, depth, packed_.get(), square_.get(), inverse_.get()} {
    std::fill_n(square_.get(), tiles(count) * tile, 0.0);
    std::fill_n(inverse_.get(), tiles(count) * tile, 0.0);
    parallel_for(panels(count), 1, threads, [this](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) pack(p);
    });
  }

  static int64_t panels(int64_t count) { return (count + panel - 1) / panel; }
  const Rows<T>& rows() const { return rows_; }

 private:
  void pack(int64_t p) {
    const int64_t depth = rows_.depth, first = p * panel, present = std::min(panel, rows_.count - first);
    double* out = packed_.get() + first * depth;
    const T* in = rows_.data + first * depth;
    double square[panel] = {};
    if (present < panel) std::fill_n(out, depth * panel, 0.0);
    for (int64_t k = 0; k < depth; k += 8) {
      const int64_t end = std::min(depth, k + 8);
      for (int64_t r = 0; r < present; ++r)
        for (int64_t c = k; c < end; ++c) out[c * panel + r] = static_cast<double>(in[r * depth + c]);
      for (int64_t c = k; c < end; ++c)
        for (int64_t r = 0; r < panel; ++r) square[r] += out[c * panel + r] * out[c * panel + r];
    }
    for (int64_t r = 0; r < present; ++r) {
      square_[first + r] = square[r];
      inverse_[first + r] = 1.0 / std::sqrt(square[r]);
    }
  }

  Buffer<double> packed_, square_, inverse_;
  Rows<T> rows_;
};

// Writes the transpose of `rows` x `columns` entries (row stride `tile`), one whole cache line after another.
// (Transposing four by four in registers scatters each line's pieces, and was slower.)
template <typename T>
void write_mirror(const T* in, int64_t rows, int64_t columns, T* out, int64_t stride) {
  for (int64_t j = 0; j < columns; ++j) {
    T* line = out + j * stride;
    if (rows == strip_rows) {  // a count the compiler knows
      for (int64_t r = 0; r < strip_rows; ++r) line[r] = in[r * tile + j];
    } else {
      for (int64_t r = 0; r < rows; ++r) line[r] = in[r * tile + j];
    }
  }
}

template <typename T>
class Engine {
 public:
  Engine(const Rows<T>& x, const Rows<T>& y, const Targets<T>& targets) : x_(x), y_(y), targets_(targets) {}

  // The tile of rows [tile_row * tile, ...) and columns [tile_column * tile, ...), from Gram entries to written
  // results.
  void run_tile(int64_t tile_row, int64_t tile_column) const {
    thread_local const Buffer<double> gram = allocate<double>(tile * tile);
    thread_local const Buffer<T> results = allocate<T>(3 * strip_rows * tile);
    const int64_t row = tile_row * tile, column = tile_column * tile, depth = x_.depth;
    const int64_t rows = std::min(tile, x_.count - row), columns = std::min(tile, y_.count - column);
    GEOWIDTH_DISPATCH(gram_tile, x_.packed + row * depth, y_.packed + column * depth, depth, Packed<T>::panels(rows),
                      Packed<T>::panels(columns), targets_.symmetric && tile_row == tile_column, gram.get());
    for (int64_t r = 0; r < rows; r += strip_rows) {
      Strip<T> strip{
          gram.get() + r * tile, row + r, std::min(strip_rows, rows - r), column, columns, &x_, &y_, &targets_, {}};
      for (int g = 0; g < 3; ++g) strip.result[g] = results.get() + g * strip_rows * tile;
      GEOWIDTH_DISPATCH(distance_strip, strip);
      write(strip);
    }
  }

 private:
  void write(const Strip<T>& s) const {
    for (int g = 0; g < 3; ++g) {
      if (!targets_.out[g]) continue;
      for (int64_t r = 0; r < s.rows; ++r) {
        // On a symmetric matrix's diagonal tile the lower triangle comes from the mirror.
        const int64_t from = targets_.symmetric ? std::max<int64_t>(0, s.row + r - s.column) : 0;
        if (from < s.columns)
          std::memcpy(targets_.out[g] + (s.row + r) * targets_.stride + s.column + from, s.result[g] + r * tile + from,
                      (s.columns - from) * sizeof(T));
      }
      if (!targets_.mirror[g]) continue;
      T* mirror = targets_.mirror[g] + s.column * targets_.mirror_stride + s.row;
      if (!targets_.symmetric || s.column >= s.row + s.rows) {
        write_mirror(s.result[g], s.rows, s.columns, mirror, targets_.mirror_stride);
      } else {
        for (int64_t r = 0; r < s.rows; ++r)
          for (int64_t j = std::max<int64_t>(0, s.row + r + 1 - s.column); j < s.columns; ++j)
            mirror[j * targets_.mirror_stride + r] = s.result[g][r * tile + j];
      }
    }
  }

  const Rows<T>& x_;
  const Rows<T>& y_;
  const Targets<T>& targets_;
};

}  // namespace

template <typename T>
void pairwise_distances(const T* x, int64_t n, const T* y, int64_t m, int64_t depth, const Targets<T>& targets,
                        int threads) {
  if (n == 0 || m == 0) return;
  for (T* out : targets.out) advise_huge_pages(out, ((n - 1) * targets.stride + m) * static_cast<int64_t>(sizeof(T)));
  const Packed<T> first(x, n, depth, threads);
  std::unique_ptr<Packed<T>> second;
  if (!targets.symmetric) second = std::make_unique<Packed<T>>(y, m, depth, threads);
  const Engine<T> engine(first.rows(), second ? second->rows() : first.rows(), targets);
  std::vector<std::pair<int64_t, int64_t>> work;
  for (int64_t i = 0; i < tiles(n); ++i)
    for (int64_t j = targets.symmetric ? i : 0; j < tiles(m); ++j) work.emplace_back(i, j);
  parallel_for(static_cast<int64_t>(work.size()), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) engine.run_tile(work[w].first, work[w].second);
  });
}

template void pairwise_distances<float>(const float*, int64_t, const float*, int64_t, int64_t, const Targets<float>&,
                                        int);
template void pairwise_distances<double>(const double*, int64_t, const double*, int64_t, int64_t,
                                         const Targets<double>&, int);

}  // namespace geowidth
