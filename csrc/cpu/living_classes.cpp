#include "cpu/living_classes.h"

#include <algorithm>

namespace geowidth {

LivingClasses::LivingClasses(const DistanceRows& distances, const std::vector<EmptyLinkEdge>& edges)
    : distances_(distances) {
  int64_t births = 0;
  empty_link_.reserve(edges.size());
  for (const auto& edge : edges) empty_link_.insert(edge.pair, edge.joins ? -1 : births++);
  replacement_.resize(births);
  dead_.assign((births + 63) / 64, 0);
  sum_.assign(dead_.size(), 0);
  first_word_ = int64_t(sum_.size());
  last_word_ = -1;
}

void LivingClasses::give_birth() {
  ++born_;
  ++living_;
}

bool LivingClasses::vanishes(uint64_t pair) const { return distances_.length(pair) < vanished_; }

void LivingClasses::flip(int64_t birth) {
  const int64_t word = birth >> 6;
  sum_[word] ^= uint64_t{1} << (birth & 63);
  first_word_ = std::min(first_word_, word);
  last_word_ = std::max(last_word_, word);
}

void LivingClasses::add(uint64_t pair) {
  if (vanishes(pair)) return;
  const Span vector = *vectors_.find(pair);
  for (int64_t i = vector.begin; i < vector.end; ++i) flip(entries_[i]);
}

// Puts living births in place of dead ones. A replacement holds only older births than the one it replaces, so one pass
// from the youngest down suffices.
void LivingClasses::reduce() {
  for (int64_t word = last_word_; word >= first_word_; --word)
    while (const uint64_t dead = sum_[word] & dead_[word]) {
      const int64_t birth = 64 * word + 63 - __builtin_clzll(dead);
      flip(birth);
      const Span older = replacement_[birth];
      for (int64_t i = older.begin; i < older.end; ++i) flip(replaced_[i]);
    }
}

// Moves the sum to the end of `entries` and leaves it zero.
LivingClasses::Span LivingClasses::take(std::vector<uint32_t>& entries) {
  const int64_t begin = int64_t(entries.size());
  for (int64_t word = first_word_; word <= last_word_; ++word) {
    for (uint64_t rest = sum_[word]; rest; rest &= rest - 1)
      entries.push_back(uint32_t(64 * word + __builtin_ctzll(rest)));
    sum_[word] = 0;
  }
  first_word_ = int64_t(sum_.size());
  last_word_ = -1;
  return {begin, int64_t(entries.size())};
}

// Settles an edge with an empty link at once; otherwise finds its bridge, a vertex of its link, as low as possible.
bool LivingClasses::open(Pending& edge) {
  if (const int64_t* birth = empty_link_.find(edge.pair)) {
    if (*birth >= 0) flip(*birth);
    return true;
  }
  const int64_t u = first_vertex(edge.pair), v = second_vertex(edge.pair), n = distances_.n;
  const double *p = distances_.row(u), *q = distances_.row(v), length = p[v];
  edge.bridge = GEOWIDTH_DISPATCH(lowest_bridge, p, q, n, length);
  for (int64_t w = 0; edge.bridge < 0; ++w)  // then a tie holds the link's vertices, and there is one
    if (w != u && w != v && (p[w] < length || (p[w] == length && pack_pair(u, w) < edge.pair)) &&
        (q[w] < length || (q[w] == length && pack_pair(v, w) < edge.pair)))
      edge.bridge = w;
  return false;
}

void LivingClasses::evaluate(uint64_t pair) {
  stack_.assign(1, {pair, -1});
  while (!stack_.empty()) {
    const Pending edge = stack_.back();
    if (known(edge.pair)) {
      stack_.pop_back();
      continue;
    }
    if (edge.bridge < 0 && !open(stack_.back())) {
      const int64_t w = stack_.back().bridge;
      stack_.push_back({pack_pair(first_vertex(edge.pair), w), -1});
      stack_.push_back({pack_pair(second_vertex(edge.pair), w), -1});
      continue;
    }
    if (edge.bridge >= 0) {
      add(pack_pair(first_vertex(edge.pair), edge.bridge));
      add(pack_pair(second_vertex(edge.pair), edge.bridge));
    }
    reduce();
    vectors_.insert(edge.pair, take(entries_));
    stack_.pop_back();
  }
}

int64_t LivingClasses::relate(int64_t u, int64_t v, int64_t a, int64_t b) {
  const uint64_t cycle[4] = {pack_pair(u, a), pack_pair(a, v), pack_pair(u, b), pack_pair(b, v)};
  for (uint64_t pair : cycle) evaluate(pair);
  for (uint64_t pair : cycle) add(pair);
  reduce();
  const Span relation = take(replaced_);
  if (relation.begin == relation.end) return -1;
  const int64_t youngest = replaced_.back();
  replaced_.pop_back();
  replacement_[youngest] = {relation.begin, relation.end - 1};
  dead_[youngest >> 6] |= uint64_t{1} << (youngest & 63);
  --living_;
  return youngest;
}

void LivingClasses::vanish_before(double length) {
  vanished_ = length;
  vectors_.clear();
  entries_.clear();
  replaced_.clear();
}

}  // namespace geowidth
