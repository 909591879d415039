// The partial matching of least total gain between rows and columns, the gains negative and sparse.
//
// Exact: shortest augmenting paths with potentials (Tomizawa 1971; Edmonds and Karp 1972), one row after the other. A row
// may stay unmatched at no gain, as if matched to a column of its own of gain 0.
//
// Potentials u (rows), v (columns), all at most 0: gain(i,j) >= u_i + v_j, with equality for matched pairs; v_j = 0 while
// column j is free; u_i = 0 if row i, once treated, is unmatched. Since v <= 0, a row's entries sorted by gain can be
// left as soon as the gain alone is too large.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/double_double.h"

namespace geowidth {

template <typename Number>
class PartialAssignment {
 public:
  PartialAssignment(std::size_t rows, std::size_t columns) : columns_(columns) {
    first_.reserve(rows + 1);
    first_.push_back(0);
  }

  // Adds an entry (gain < 0) to the present row.
  void add(int32_t column, const Number& gain) { entries_.push_back({gain, column}); }
  void end_row() {
    std::sort(entries_.begin() + first_.back(), entries_.end(),
              [](const Entry& x, const Entry& y) { return x.gain < y.gain; });
    first_.push_back(int64_t(entries_.size()));
  }

  // Each row's column, or -1.
  const std::vector<int32_t>& solve() {
    const std::size_t rows = first_.size() - 1;
    row_potential_.assign(rows, Number(0));
    column_of_.assign(rows, -1);
    for (std::size_t row = 0; row < rows; ++row) augment(int32_t(row));
    return column_of_;
  }

  // By how much the gain of solve()'s matching may exceed the least one, rounding of the gains themselves aside: what the
  // potentials, rounded on the way, fall short of the conditions above.
  double violation() const {
    double total = 0;
    for (std::size_t row = 0; row < column_of_.size(); ++row) {
      double worst = 0;
      for (int64_t e = first_[row]; e < first_[row + 1] && entries_[e].gain < row_potential_[row]; ++e) {
        const int32_t column = entries_[e].column;
        const double slack = rounded(entries_[e].gain - row_potential_[row] - columns_[column].potential);
        worst = std::max(worst, column == column_of_[row] ? std::abs(slack) : -slack);
      }
      total += worst;
    }
    return total;
  }

 private:
  enum State { untouched, reached, settled };

  struct Entry {
    Number gain;
    int32_t column;
  };
  // What a search asks of a column lies together.
  struct Column {
    Number potential{0}, distance{0};
    int32_t row = -1, parent = -1;
    State state = untouched;
  };
  struct Reached {
    Number distance;
    int32_t column;
    bool operator<(const Reached& other) const { return other.distance < distance; }  // the heap's top is the nearest
  };

  // Relaxes the entries of `row`, itself `base` away from the start. A path that may end here, in a free column or by
  // leaving a matched column's row unmatched, bounds at once those worth following.
  void relax(int32_t row, const Number& base) {
    const Number offset = base - row_potential_[row];
    for (int64_t e = first_[row]; e < first_[row + 1]; ++e) {
      const Number least = entries_[e].gain + offset;
      if (!(least < best_)) return;
      Column& column = columns_[entries_[e].column];
      const Number distance = least - column.potential;
      if (!(distance < best_) || column.state == settled) continue;
      if (column.state == reached && !(distance < column.distance)) continue;
      if (column.state == untouched) touched_.push_back(entries_[e].column);
      column.state = reached;
      column.distance = distance;
      column.parent = row;
      const Number end = column.row < 0 ? distance : distance - row_potential_[column.row];
      if (end < best_) {
        best_ = end;
        last_ = entries_[e].column;
      }
      if (column.row < 0) continue;
      heap_.push_back({distance, entries_[e].column});
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  // The nearest matched column not yet settled, or -1.
  int32_t next_column() {
    while (!heap_.empty()) {
      const Reached top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      const Column& column = columns_[top.column];
      if (column.state == reached && !(column.distance < top.distance)) return top.column;
    }
    return -1;
  }

  // Matches `start`, or leaves it or a row it displaces unmatched, whichever is nearest.
  void augment(int32_t start) {
    heap_.clear();
    touched_.clear();
    row_potential_[start] = Number(0);
    best_ = Number(0);
    last_ = -1;
    relax(start, Number(0));
    for (int32_t next; (next = next_column()) >= 0 && columns_[next].distance < best_;) {
      columns_[next].state = settled;
      relax(columns_[next].row, columns_[next].distance);
    }
    update_potentials(start);
    if (last_ < 0) return;
    const int32_t leaving = columns_[last_].row;
    if (leaving >= 0) column_of_[leaving] = -1;
    flip_path(start, last_);
  }

  void update_potentials(int32_t start) {
    row_potential_[start] = row_potential_[start] + best_;
    for (int32_t index : touched_) {
      Column& column = columns_[index];
      if (column.state == settled && column.distance < best_) {
        const Number change = best_ - column.distance;
        column.potential = column.potential - change;
        row_potential_[column.row] = row_potential_[column.row] + change;
      }
      column.state = untouched;
    }
  }

  void flip_path(int32_t start, int32_t column) {
    for (int32_t row = -1; row != start;) {
      row = columns_[column].parent;
      columns_[column].row = row;
      std::swap(column_of_[row], column);
    }
  }

  std::vector<int64_t> first_;  // of each row, in entries_
  std::vector<Entry> entries_;
  std::vector<Column> columns_;
  std::vector<Number> row_potential_;
  std::vector<int32_t> column_of_, touched_;
  std::vector<Reached> heap_;
  Number best_{0};     // the length of the shortest path to an end so far
  int32_t last_ = -1;  // its last column, or -1 for leaving the start unmatched
};

}  // namespace geowidth
