// The partial matching of least total gain between rows and columns, the gains negative and sparse.
//
// Exact: shortest augmenting paths with potentials (Tomizawa 1971; Edmonds and Karp 1972), begun by the row reduction of
// Jonker and Volgenant 1987. A row may stay unmatched at no gain, as if matched to a column of its own of gain 0.
//
// Potentials u (rows), v (columns), all at most 0: gain(i,j) >= u_i + v_j, with equality for matched pairs; v_j = 0 while
// column j is free; u_i = 0 if row i, once treated, is unmatched. Since v <= 0, a row's entries sorted by gain can be
// left as soon as the gain alone is too large.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
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
  void add(uint32_t column, const Number& gain) { entries_.push_back({gain, column}); }
  void end_row() {
    std::sort(entries_.begin() + first_.back(), entries_.end(),
              [](const Entry& x, const Entry& y) { return x.gain < y.gain; });
    first_.push_back(int64_t(entries_.size()));
  }

  // Each row's column, or -1.
  const std::vector<int32_t>& solve() {
    const std::size_t rows = first_.size() - 1;
    row_potential_.assign(rows, Number(0));
    potential_.assign(columns_, Number(0));
    column_of_.assign(rows, -1);
    row_of_.assign(columns_, -1);
    distance_.assign(columns_, Number(0));
    parent_.assign(columns_, -1);
    state_.assign(columns_, untouched);
    for (int32_t row : reduce_rows()) augment(row);
    return column_of_;
  }

  // By how much rounding to doubles may have kept solve() from the least gain: what a few units in the last place of every
  // number that took part in a row's choice add up to.
  double uncertainty() const {
    double total = 0;
    for (std::size_t row = 0; row < column_of_.size(); ++row) {
      if (first_[row] == first_[row + 1]) continue;
      double price = 0;
      for (int64_t e = first_[row]; e < first_[row + 1]; ++e)
        price = std::max(price, -rounded(potential_[entries_[e].column]));
      total += price - rounded(row_potential_[row]) - rounded(entries_[first_[row]].gain);
    }
    return 8 * std::numeric_limits<double>::epsilon() * total;
  }

 private:
  struct Entry {
    Number gain;
    uint32_t column;
  };
  struct Reached {
    Number distance;
    int32_t column;
    bool operator<(const Reached& other) const { return other.distance < distance; }  // the heap's top is the nearest
  };
  enum State : char { untouched, reached, settled };

  // Gives each row its best column, and raises that column's price by what the second best is worse; a row that loses its
  // column bids again, a bounded number of times. Returns the rows left over.
  std::vector<int32_t> reduce_rows() {
    std::vector<int32_t> waiting(column_of_.size()), left;
    std::iota(waiting.begin(), waiting.end(), 0);
    for (int64_t bids = 8 * int64_t(waiting.size()); !waiting.empty() && bids > 0; --bids) {
      const int32_t row = waiting.back();
      waiting.pop_back();
      bid(row, waiting, left);
    }
    left.insert(left.end(), waiting.begin(), waiting.end());
    return left;
  }

  void bid(int32_t row, std::vector<int32_t>& waiting, std::vector<int32_t>& left) {
    Number best(0), second(0);
    int32_t column = -1;
    for (int64_t e = first_[row]; e < first_[row + 1] && entries_[e].gain < second; ++e) {
      const Number cost = entries_[e].gain - potential_[entries_[e].column];
      if (cost < best) {
        second = best;
        best = cost;
        column = int32_t(entries_[e].column);
      } else if (cost < second) {
        second = cost;
      }
    }
    row_potential_[row] = column < 0 ? Number(0) : second;
    if (column < 0) return;
    const int32_t loser = row_of_[column];
    if (loser >= 0 && !(best < second)) {  // a tie would go round in circles
      row_potential_[row] = best;
      left.push_back(row);
      return;
    }
    potential_[column] = potential_[column] + best - second;
    row_of_[column] = row;
    column_of_[row] = column;
    if (loser >= 0) {
      column_of_[loser] = -1;
      waiting.push_back(loser);
    }
  }

  // Relaxes the entries of `row`, itself `base` away from the start.
  void relax(int32_t row, const Number& base, const Number& bound) {
    const Number offset = base - row_potential_[row];
    for (int64_t e = first_[row]; e < first_[row + 1]; ++e) {
      const Number least = entries_[e].gain + offset;
      if (!(least < bound)) return;
      const uint32_t column = entries_[e].column;
      if (state_[column] == settled) continue;
      const Number distance = least - potential_[column];
      if (!(distance < bound) || (state_[column] == reached && !(distance < distance_[column]))) continue;
      if (state_[column] == untouched) touched_.push_back(int32_t(column));
      state_[column] = reached;
      distance_[column] = distance;
      parent_[column] = row;
      heap_.push_back({distance, int32_t(column)});
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  // The nearest column not yet settled, or -1.
  int32_t next_column() {
    while (!heap_.empty()) {
      const Reached top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      if (state_[top.column] == reached && !(distance_[top.column] < top.distance)) return top.column;
    }
    return -1;
  }

  // Matches `start`, or leaves it or a row it displaces unmatched, whichever is nearest.
  void augment(int32_t start) {
    heap_.clear();
    touched_.clear();
    row_potential_[start] = Number(0);
    Number base(0), best(0);
    int32_t row = start, leaving = start, column = -1;
    for (;;) {
      relax(row, base, best);
      const int32_t next = next_column();
      if (next < 0 || !(distance_[next] < best)) break;
      state_[next] = settled;
      base = distance_[next];
      if (row_of_[next] < 0) {
        best = base;
        column = next;
        break;
      }
      row = row_of_[next];
      const Number leave = base - row_potential_[row];
      if (leave < best) {
        best = leave;
        leaving = row;
      }
    }
    update_potentials(start, best);
    if (column < 0) {
      if (leaving == start) return;
      column = column_of_[leaving];
      column_of_[leaving] = -1;
    }
    flip_path(start, column);
  }

  void update_potentials(int32_t start, const Number& best) {
    row_potential_[start] = row_potential_[start] + best;
    for (int32_t column : touched_) {
      if (state_[column] == settled && distance_[column] < best) {
        const Number change = best - distance_[column];
        potential_[column] = potential_[column] - change;
        row_potential_[row_of_[column]] = row_potential_[row_of_[column]] + change;
      }
      state_[column] = untouched;
    }
  }

  void flip_path(int32_t start, int32_t column) {
    for (int32_t row = -1; row != start;) {
      row = parent_[column];
      row_of_[column] = row;
      std::swap(column_of_[row], column);
    }
  }

  std::size_t columns_;
  std::vector<int64_t> first_;
  std::vector<Entry> entries_;
  std::vector<Number> row_potential_, potential_, distance_;
  std::vector<int32_t> column_of_, row_of_, parent_, touched_;
  std::vector<State> state_;
  std::vector<Reached> heap_;
};

}  // namespace geowidth
