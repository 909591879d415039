// The partial matching of least total gain between rows and columns, the gains negative and sparse.
//
// Exact: shortest augmenting paths with potentials (Tomizawa 1971; Edmonds and Karp 1972). A row or a column may stay
// unmatched at no gain. Entries may be added to a solved problem; then only what they disturb is solved again.
//
// Potentials u (rows), v (columns), all at most 0: gain(i,j) >= u_i + v_j, with equality for matched pairs; 0 where a
// row or column is unmatched. A path from an unmatched row or column restores the last for it and keeps it for all
// others. Since no potential is above 0, entries sorted by gain can be left as soon as the gain alone is too large.
#pragma once

#include <algorithm>
#include <array>
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
  enum Side { rows, columns };

  PartialAssignment(std::size_t row_count, std::size_t column_count)
      : nodes_{std::vector<Node>(row_count), std::vector<Node>(column_count)},
        first_{std::vector<std::size_t>(row_count + 1, 0), std::vector<std::size_t>(column_count + 1, 0)} {}

  // The solution of a problem in coarser arithmetic, and gain(row, column) for its entries: what rounding has disturbed
  // is solved again by the next call of `solve`.
  template <typename Coarser, typename Gain>
  PartialAssignment(const PartialAssignment<Coarser>& coarser, Gain gain)
      : PartialAssignment(coarser.nodes_[rows].size(), coarser.nodes_[columns].size()) {
    for (Side side : {rows, columns})
      for (std::size_t i = 0; i < nodes_[side].size(); ++i) {
        nodes_[side][i].potential = Number(std::min(coarser.nodes_[side][i].potential, Coarser(0)));
        nodes_[side][i].partner = coarser.nodes_[side][i].partner;
      }
    for (std::size_t row = 0; row < nodes_[rows].size(); ++row)
      coarser.for_each_column(int32_t(row), [&](int32_t column) { add(int32_t(row), column, gain(row, column)); });
    index();
    for (std::size_t row = 0; row < nodes_[rows].size(); ++row) tighten(int32_t(row));
  }

  // Adds an entry (gain < 0). The same one may be added twice.
  void add(int32_t row, int32_t column, const Number& gain) { added_.push_back({gain, row, column}); }

  // Takes in the entries added since the last call and solves, row after row in the given order, from the solution
  // there is (at first, nothing is matched).
  void solve(const std::vector<int32_t>& order) {
    std::vector<char> has_more(nodes_[rows].size(), 0);
    for (const Added& entry : added_) has_more[entry.row] = 1;
    index();
    for (int32_t row : order)
      if (has_more[row]) give_way(row);
    for (int32_t row : order)
      if (is_hungry(rows, row)) augment(rows, row);
    for (std::size_t column = 0; column < nodes_[columns].size(); ++column) {
      if (!is_hungry(columns, int32_t(column))) continue;
      index_columns();
      augment(columns, int32_t(column));
    }
  }

  // The column of a row, or -1.
  int32_t column_of(int32_t row) const { return nodes_[rows][row].partner; }
  const Number& potential(Side side, int32_t index) const { return nodes_[side][index].potential; }
  // Calls function(column) for every entry of a row.
  template <typename Function>
  void for_each_column(int32_t row, Function function) const {
    for (std::size_t e = first_[rows][row]; e < first_[rows][row + 1]; ++e) function(edges_[rows][e].to);
  }

  // By how much the gain of the matching may exceed the least one, rounding of the gains themselves aside: what the
  // potentials, rounded on the way, fall short of the conditions above.
  double violation() const {
    double total = 0;
    for (std::size_t row = 0; row < nodes_[rows].size(); ++row) {
      const Node& node = nodes_[rows][row];
      double worst = 0;
      for (std::size_t e = first_[rows][row]; e < first_[rows][row + 1]; ++e) {
        const Edge& edge = edges_[rows][e];
        const double slack = rounded(edge.gain - node.potential - nodes_[columns][edge.to].potential);
        worst = std::max(worst, edge.to == node.partner ? std::abs(slack) : -slack);
      }
      total += worst;
    }
    return total;
  }

 private:
  template <typename>
  friend class PartialAssignment;

  enum State { untouched, reached, settled };

  struct Added {
    Number gain;
    int32_t row, column;
  };
  struct Edge {
    Number gain;
    int32_t to;
  };
  // What a search asks of a row or column lies together.
  struct Node {
    Number potential{0}, distance{0};
    int32_t partner = -1, parent = -1;
    State state = untouched;
  };
  struct Reached {
    Number distance;
    int32_t index;
    bool operator<(const Reached& other) const { return other.distance < distance; }  // the heap's top is the nearest
  };

  static Side opposite(Side side) { return side == rows ? columns : rows; }
  bool is_hungry(Side side, int32_t index) const {
    const Node& node = nodes_[side][index];
    return node.partner < 0 && node.potential < Number(0);
  }

  // Merges the entries added into the lists of rows. Those of columns are made when a search first needs them.
  void index() {
    collect();
    list(rows, [](const Added& x) { return std::pair(x.row, x.column); });
    added_.clear();
    edges_[columns].clear();
  }
  void index_columns() {
    if (!edges_[columns].empty()) return;
    collect();
    list(columns, [](const Added& x) { return std::pair(x.column, x.row); });
    added_.clear();
  }
  // Puts the entries of all rows' lists back among those added.
  void collect() {
    for (std::size_t row = 0; row < nodes_[rows].size(); ++row)
      for (std::size_t e = first_[rows][row]; e < first_[rows][row + 1]; ++e)
        added_.push_back({edges_[rows][e].gain, int32_t(row), edges_[rows][e].to});
  }

  // Lists added_ by one side, each list by gain, without repetitions.
  template <typename Ends>
  void list(Side side, Ends ends) {
    std::vector<std::size_t>& first = first_[side];
    std::vector<Edge>& edges = edges_[side];
    std::fill(first.begin(), first.end(), 0);
    for (const Added& entry : added_) ++first[ends(entry).first + 1];
    for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    std::vector<std::size_t> next(first.begin(), first.end() - 1);
    edges.resize(added_.size());
    for (const Added& entry : added_) edges[next[ends(entry).first]++] = {entry.gain, ends(entry).second};
    std::size_t kept = 0;
    for (std::size_t i = 0; i + 1 < first.size(); ++i) {
      const auto begin = edges.begin() + first[i], end = edges.begin() + first[i + 1];
      std::sort(begin, end,
                [](const Edge& x, const Edge& y) { return x.gain < y.gain || (!(y.gain < x.gain) && x.to < y.to); });
      const auto last = std::unique(begin, end, [](const Edge& x, const Edge& y) { return x.to == y.to; });
      first[i] = kept;
      for (auto edge = begin; edge != last; ++edge) edges[kept++] = *edge;
    }
    first.back() = kept;
    edges.resize(kept);
  }

  // Lowers a row's potential to what its entries allow. Its match, then no longer tight, is dissolved.
  void give_way(int32_t row) {
    Node& node = nodes_[rows][row];
    Number least = node.potential;
    for (std::size_t e = first_[rows][row]; e < first_[rows][row + 1]; ++e) {
      const Edge& edge = edges_[rows][e];
      const Number allowed = edge.gain - nodes_[columns][edge.to].potential;
      if (edge.to != node.partner && allowed < least) least = allowed;
    }
    if (!(least < node.potential)) return;
    node.potential = least;
    dissolve(row);
  }

  // Sets a row's potential to the largest that its entries allow. Its match is dissolved unless tight.
  void tighten(int32_t row) {
    Node& node = nodes_[rows][row];
    Number least(0), matched(0);
    for (std::size_t e = first_[rows][row]; e < first_[rows][row + 1]; ++e) {
      const Edge& edge = edges_[rows][e];
      const Number allowed = edge.gain - nodes_[columns][edge.to].potential;
      if (allowed < least) least = allowed;
      if (edge.to == node.partner) matched = allowed;
    }
    node.potential = least;
    if (least < matched) dissolve(row);
  }

  void dissolve(int32_t row) {
    Node& node = nodes_[rows][row];
    if (node.partner >= 0) nodes_[columns][node.partner].partner = -1;
    node.partner = -1;
  }

  // Relaxes the entries of a node, itself `base` away from the start. A path that may end here, in an unmatched node or
  // by leaving a matched one's partner unmatched, bounds at once those worth following.
  void relax(Side side, int32_t index, const Number& base) {
    std::vector<Node>&others = nodes_[opposite(side)], &own = nodes_[side];
    const Number offset = base - own[index].potential;
    const Edge* const end = edges_[side].data() + first_[side][index + 1];
    for (const Edge* edge = edges_[side].data() + first_[side][index]; edge != end; ++edge) {
      const Number least = edge->gain + offset;
      if (!(least < best_)) return;
      Node& node = others[edge->to];
      const Number distance = least - node.potential;
      if (!(distance < best_) || node.state == settled) continue;
      if (node.state == reached && !(distance < node.distance)) continue;
      if (node.state == untouched) touched_.push_back(edge->to);
      node.state = reached;
      node.distance = distance;
      node.parent = index;
      const Number whole = node.partner < 0 ? distance : distance - own[node.partner].potential;
      if (whole < best_) {
        best_ = whole;
        last_ = edge->to;
      }
      if (node.partner < 0) continue;
      heap_.push_back({distance, edge->to});
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  // The nearest matched node not yet settled, or -1.
  int32_t next_node(const std::vector<Node>& others) {
    while (!heap_.empty()) {
      const Reached top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      const Node& node = others[top.index];
      if (node.state == reached && !(node.distance < top.distance)) return top.index;
    }
    return -1;
  }

  // Matches the unmatched node `start`, or leaves it or one it displaces unmatched, whichever is nearest.
  void augment(Side side, int32_t start) {
    std::vector<Node>&others = nodes_[opposite(side)], &own = nodes_[side];
    heap_.clear();
    touched_.clear();
    own[start].potential = Number(0);
    best_ = Number(0);
    last_ = -1;
    relax(side, start, Number(0));
    for (int32_t next; (next = next_node(others)) >= 0 && others[next].distance < best_;) {
      others[next].state = settled;
      relax(side, others[next].partner, others[next].distance);
    }
    own[start].potential = best_;
    for (int32_t index : touched_) {
      Node& node = others[index];
      if (node.state == settled && node.distance < best_) {
        const Number change = best_ - node.distance;
        node.potential = node.potential - change;
        own[node.partner].potential = own[node.partner].potential + change;
      }
      node.state = untouched;
    }
    if (last_ >= 0) flip_path(own, others, start);
  }

  void flip_path(std::vector<Node>& own, std::vector<Node>& others, int32_t start) {
    int32_t other = last_;
    if (others[other].partner >= 0) {
      own[others[other].partner].partner = -1;
      own[others[other].partner].potential = Number(0);
    }
    for (int32_t index = -1; index != start;) {
      index = others[other].parent;
      others[other].partner = index;
      std::swap(own[index].partner, other);
    }
  }

  std::array<std::vector<Node>, 2> nodes_;
  std::array<std::vector<std::size_t>, 2> first_;  // of each row or column, in edges_
  std::array<std::vector<Edge>, 2> edges_;
  std::vector<Added> added_;
  std::vector<int32_t> touched_;
  std::vector<Reached> heap_;
  Number best_{0};     // the length of the shortest path to an end so far
  int32_t last_ = -1;  // its last node, or -1 for leaving the start unmatched
};

}  // namespace geowidth
