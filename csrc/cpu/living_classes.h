// Degree-one homology classes with Z/2 coefficients as edges enter a Vietoris-Rips filtration.
//
// Every edge that has entered is given a vector over the births: the vector of an edge that gave birth is that birth,
// that of an edge that joined components is zero, and that of any other edge {a, b} is the sum of those of {a, w} and
// {w, b}, w a vertex of its link. The vectors along a cycle add up to its class. They are evaluated only when a
// relation asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/persistence_kernels.h"
#include "cpu/relative_neighbourhood.h"

namespace geowidth {

// Open-addressing map from pairs (never 0) to what Value holds.
template <typename Value>
class PairMap {
 public:
  void reserve(std::size_t count) {
    std::size_t size = 64;
    while (size < 2 * count) size *= 2;
    if (size > keys_.size()) rehash(size);
  }
  const Value* find(uint64_t pair) const {
    if (keys_.empty()) return nullptr;
    const std::size_t at = slot(pair);
    return keys_[at] ? &values_[at] : nullptr;
  }
  void insert(uint64_t pair, Value value) {
    reserve(++count_);
    const std::size_t at = slot(pair);
    keys_[at] = pair;
    values_[at] = value;
  }
  Value* find(uint64_t pair) { return const_cast<Value*>(static_cast<const PairMap*>(this)->find(pair)); }
  template <typename Function>
  void for_each(Function function) {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i]) function(values_[i]);
  }
  void clear() {
    keys_.assign(keys_.size(), 0);
    count_ = 0;
  }

 private:
  std::size_t slot(uint64_t pair) const {
    const std::size_t mask = keys_.size() - 1;
    std::size_t at = (pair * 0x9e3779b97f4a7c15) >> 20 & mask;
    while (keys_[at] && keys_[at] != pair) at = (at + 1) & mask;
    return at;
  }
  void rehash(std::size_t size) {
    std::vector<uint64_t> keys(size, 0);
    std::vector<Value> values(size);
    keys_.swap(keys);
    values_.swap(values);
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (keys[i]) {
        const std::size_t at = slot(keys[i]);
        keys_[at] = keys[i];
        values_[at] = values[i];
      }
  }

  std::vector<uint64_t> keys_;
  std::vector<Value> values_;
  std::size_t count_ = 0;
};

class LivingClasses {
 public:
  // `edges`: every edge with an empty link, in order; births are numbered in that order.
  LivingClasses(const DistanceRows& distances, const std::vector<EmptyLinkEdge>& edges);

  int64_t living() const { return living_; }
  // The class of the next birth lives from now on.
  void give_birth();
  // Declares that the cycle u - a - v - b bounds. Returns the birth it kills (the youngest of the cycle's class), or -1
  // if the cycle bounded already. All four edges must have entered.
  int64_t relate(int64_t u, int64_t v, int64_t a, int64_t b);
  // To be called when none lives and every edge shorter than `length` has entered: their vectors are zero from now on.
  void vanish_before(double length);

 private:
  struct Span {  // a place in a Store
    int64_t begin = 0, end = 0;
  };
  struct Pending {
    uint64_t pair;
    int64_t bridge;
  };

  // Vectors, each a run of increasing births, one after the other; those replaced or dropped leave gaps until
  // compacted.
  struct Store {
    std::vector<uint32_t> births;
    int64_t used = 0;
  };

  bool vanishes(uint64_t pair) const;
  void evaluate(uint64_t pair);
  bool open(Pending& edge);
  bool is_dead(int64_t birth) const { return dead_[birth >> 6] >> (birth & 63) & 1; }
  void add_span(const Store& store, const Span& span);
  bool has_dead(const Store& store, const Span& span) const;
  void refresh(Span& span);
  void refresh_replacement(int64_t birth);
  void add_refreshed(const Store& store, const Span& span);
  void add(uint64_t pair);
  void widen(int64_t first, int64_t last);
  void flip(int64_t birth);
  Span take(Store& store);
  void compact();

  DistanceRows distances_;
  PairMap<int64_t> empty_link_;  // pair -> birth, or -1 where it joined
  PairMap<Span> vectors_;        // pair -> its vector, in entries_
  Store entries_;
  std::vector<Span> replacement_;  // of a dead birth: the older births it became equal to, in replaced_
  Store replaced_;
  std::vector<int64_t> fresh_;        // of a dead birth: how many had died when its replacement held living births only
  std::vector<uint64_t> dead_, sum_;  // one bit per birth
  int64_t first_word_, last_word_;    // the words of sum_ that may be non-zero
  std::vector<Pending> stack_;
  std::vector<int64_t> stale_;
  int64_t born_ = 0, living_ = 0, deaths_ = 0;
  double vanished_ = -1;  // edges shorter than this have vector zero: no class lived when all had entered
};

}  // namespace geowidth
