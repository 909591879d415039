// The edges of a distance matrix in increasing order of (length, pair), stretch by stretch, so that only a part of
// them is in memory at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/persistence_kernels.h"

namespace geowidth {

class EdgeOrder {
 public:
  // Edges of length at most `limit` (and finite).
  EdgeOrder(const DistanceRows& distances, double limit);

  // Loads the next stretch; false when no edge is left.
  bool advance();
  // Makes the next stretch begin at the first edge of at least this length.
  void skip_to(double length);

  const uint64_t* edges() const { return edges_.data(); }
  int64_t size() const { return size_; }
  // Every edge shorter than this lies before the present stretch or in it.
  double end_length() const { return low_; }

 private:
  void sample();
  double planned_end() const;
  bool collect(double low, double high);
  double shrink(double low) const;
  void collect_stretch();
  void collect_ties();
  void sort(double low, double high);
  void sort_equal_keys();

  DistanceRows distances_;
  double end_;            // no edge of this length or more is wanted
  double low_ = 0;        // where the next stretch begins
  int64_t tie_row_ = -1;  // in a run of equal lengths too long for one stretch: the row to go on from
  int64_t capacity_;
  int64_t size_ = 0;
  std::vector<double> sample_;
  double edges_per_sample_ = 0;
  std::vector<uint64_t> edges_, spare_;
};

}  // namespace geowidth
