// The bars of a persistence diagram as points of the plane, in a k-d tree (Bentley 1975) that finds the cheapest
// partners of a bar.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/diagram_distance.h"

namespace geowidth {

struct Bar {
  double birth, death;
  double persistence() const { return death - birth; }
  bool operator<(const Bar& other) const {
    return birth < other.birth || (birth == other.birth && death < other.death);
  }
  bool operator==(const Bar& other) const { return birth == other.birth && death == other.death; }
};

using Bars = std::vector<Bar>;

class BarTree {
 public:
  struct Found {
    double value;
    int32_t index;
    bool operator<(const Found& other) const { return value < other.value; }
  };

  BarTree(const Bars& bars, GroundNorm ground) : ground_(ground), order_(bars.size()) {
    for (std::size_t i = 0; i < bars.size(); ++i) order_[i] = {bars[i], 0.0, int32_t(i)};
    std::size_t leaves = 1;
    while (leaves * leaf_size < bars.size()) leaves *= 2;
    nodes_.resize(2 * leaves);
    if (!bars.empty()) split(1, 0, order_.size());
  }

  // Gives every bar a weight; the first are 0.
  void weigh(const std::vector<double>& weights) {
    for (Place& place : order_) place.weight = weights[place.index];
    if (!order_.empty()) gather_weights(1, 0, order_.size());
  }

  // Up to `count` indices j of least cost(bar, j) among those with cost(bar, j) - weight_j < room, in `found` in no
  // order. Of equal costs those are taken that come first in an order that `variety` picks.
  void nearest(const Bar& bar, double room, std::size_t count, uint64_t variety, std::vector<Found>& found) const {
    const auto accept = [](int32_t) { return true; };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    search(Search<const decltype(accept)>{bar, room, infinity, 0.0, count, variety, accept, found});
  }
  // The same of least cost(bar, j) - weight_j, among those with accept(j).
  template <typename Accept>
  void lowest(const Bar& bar, double room, std::size_t count, uint64_t variety, Accept accept,
              std::vector<Found>& found) const {
    search(Search<Accept>{bar, room, room, 1.0, count, variety, accept, found});
  }

 private:
  static constexpr std::size_t leaf_size = 8;

  struct Place {
    Bar bar;
    double weight;
    int32_t index;
  };
  struct Node {
    Bar low, high;
    double weight;  // the largest
  };
  template <typename Accept>
  struct Search {
    const Bar& bar;
    double room, limit;  // bounds of cost - weight, and of what is compared: cost - share * weight
    double share;
    std::size_t count;
    uint64_t bits;
    Accept& accept;
    std::vector<Found>& found;
  };

  bool is_leaf(std::size_t node) const { return 2 * node >= nodes_.size(); }

  // Sets a node's box and weight to those of [begin, end).
  void enclose(std::size_t node, std::size_t begin, std::size_t end) {
    Node& box = nodes_[node];
    box = {order_[begin].bar, order_[begin].bar, order_[begin].weight};
    for (std::size_t i = begin; i < end; ++i) {
      const Bar& bar = order_[i].bar;
      box.low = {std::min(box.low.birth, bar.birth), std::min(box.low.death, bar.death)};
      box.high = {std::max(box.high.birth, bar.birth), std::max(box.high.death, bar.death)};
      box.weight = std::max(box.weight, order_[i].weight);
    }
  }

  void gather_weights(std::size_t node, std::size_t begin, std::size_t end) {
    if (is_leaf(node)) return enclose(node, begin, end);
    const std::size_t middle = (begin + end) / 2;
    gather_weights(2 * node, begin, middle);
    gather_weights(2 * node + 1, middle, end);
    nodes_[node].weight = std::max(nodes_[2 * node].weight, nodes_[2 * node + 1].weight);
  }

  // Orders [begin, end) so that its halves lie on two sides of the longer edge of its box.
  void split(std::size_t node, std::size_t begin, std::size_t end) {
    enclose(node, begin, end);
    if (is_leaf(node)) return;
    const Node& box = nodes_[node];
    const bool by_birth = box.high.birth - box.low.birth > box.high.death - box.low.death;
    const std::size_t middle = (begin + end) / 2;
    std::nth_element(order_.begin() + begin, order_.begin() + middle, order_.begin() + end,
                     [by_birth](const Place& x, const Place& y) {
                       return by_birth ? x.bar.birth < y.bar.birth : x.bar.death < y.bar.death;
                     });
    split(2 * node, begin, middle);
    split(2 * node + 1, middle, end);
  }

  double combined(double birth, double death) const {
    birth *= birth, death *= death;
    return ground_ == GroundNorm::euclidean ? birth + death : std::max(birth, death);
  }

  // No bar under the node costs less.
  double bound(std::size_t node, const Bar& bar) const {
    const Node& box = nodes_[node];
    const double birth = std::max({box.low.birth - bar.birth, bar.birth - box.high.birth, 0.0});
    const double death = std::max({box.low.death - bar.death, bar.death - box.high.death, 0.0});
    return combined(birth, death);
  }

  template <typename Accept>
  void search(Search<Accept> search) const {
    search.found.clear();
    search.bits *= 0x9e3779b97f4a7c15;
    if (!order_.empty()) visit(search, 1, 0, order_.size(), bound(1, search.bar));
  }

  template <typename Accept>
  void visit(Search<Accept>& search, std::size_t node, std::size_t begin, std::size_t end, double least) const {
    const double weight = nodes_[node].weight;
    if (!(least - weight < search.room && least - search.share * weight < search.limit)) return;
    if (is_leaf(node)) return visit_leaf(search, begin, end);
    const std::size_t middle = (begin + end) / 2;
    const double left = bound(2 * node, search.bar), right = bound(2 * node + 1, search.bar);
    search.bits = search.bits << 1 | search.bits >> 63;
    if (left < right || (left == right && (search.bits & 1))) {
      visit(search, 2 * node, begin, middle, left);
      visit(search, 2 * node + 1, middle, end, right);
    } else {
      visit(search, 2 * node + 1, middle, end, right);
      visit(search, 2 * node, begin, middle, left);
    }
  }

  template <typename Accept>
  void visit_leaf(Search<Accept>& search, std::size_t begin, std::size_t end) const {
    const std::size_t size = end - begin, start = search.bits % size;
    for (std::size_t k = 0; k < size; ++k) {
      const Place& place = order_[begin + (start + k) % size];
      const double cost = combined(place.bar.birth - search.bar.birth, place.bar.death - search.bar.death);
      const double value = cost - search.share * place.weight;
      if (!(cost - place.weight < search.room && value < search.limit) || !search.accept(place.index)) continue;
      std::vector<Found>& heap = search.found;
      if (heap.size() == search.count) {
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
      heap.push_back({value, place.index});
      std::push_heap(heap.begin(), heap.end());
      if (heap.size() == search.count) search.limit = heap.front().value;
    }
  }

  GroundNorm ground_;
  std::vector<Place> order_;
  std::vector<Node> nodes_;  // node k has the children 2 k and 2 k + 1
};

}  // namespace geowidth
