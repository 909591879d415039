#include "cpu/living_classes.h"

#include <algorithm>

namespace geowidth {

LivingClasses::LivingClasses(const DistanceRows& distances, const std::vector<EmptyLinkEdge>& edges)
    : distances_(distances) {
  int64_t births = 0;
  empty_link_.reserve(edges.size());
  for (const auto& edge : edges) empty_link_.insert(edge.pair, edge.joins ? -1 : births++);
  replacement_.resize(births);
  fresh_.assign(births, 0);
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

// The words of the sum between these births may be non-zero from now on.
void LivingClasses::widen(int64_t first, int64_t last) {
  first_word_ = std::min(first_word_, first >> 6);
  last_word_ = std::max(last_word_, last >> 6);
}

void LivingClasses::flip(int64_t birth) { sum_[birth >> 6] ^= uint64_t{1} << (birth & 63); }

void LivingClasses::add_span(const Store& store, const Span& span) {
  if (span.begin == span.end) return;
  const uint32_t *begin = store.births.data() + span.begin, *end = store.births.data() + span.end;
  widen(*begin, end[-1]);
  for (const uint32_t* birth = begin; birth != end; ++birth) flip(*birth);
}

bool LivingClasses::has_dead(const Store& store, const Span& span) const {
  for (int64_t i = span.begin; i < span.end; ++i)
    if (is_dead(store.births[i])) return true;
  return false;
}

// Adds a vector to the sum, living births in place of dead ones whose replacements are fresh.
void LivingClasses::add_refreshed(const Store& store, const Span& span) {
  if (span.begin == span.end) return;
  const uint32_t *begin = store.births.data() + span.begin, *end = store.births.data() + span.end;
  widen(*begin, end[-1]);
  for (const uint32_t* birth = begin; birth != end; ++birth) {
    if (is_dead(*birth))
      add_span(replaced_, replacement_[*birth]);
    else
      flip(*birth);
  }
}

// Makes the replacement of a dead birth one of living births. It holds older births only, so this ends.
void LivingClasses::refresh_replacement(int64_t birth) {
  stale_.assign(1, birth);
  while (!stale_.empty()) {
    const int64_t top = stale_.back();
    if (fresh_[top] == deaths_) {
      stale_.pop_back();
      continue;
    }
    Span& span = replacement_[top];
    const std::size_t depth = stale_.size();
    bool dead = false;
    for (int64_t i = span.begin; i < span.end; ++i) {
      const int64_t older = replaced_.births[i];
      if (!is_dead(older)) continue;
      dead = true;
      if (fresh_[older] != deaths_) stale_.push_back(older);
    }
    if (stale_.size() > depth) continue;
    stale_.pop_back();
    fresh_[top] = deaths_;
    if (!dead) continue;
    add_refreshed(replaced_, span);
    replaced_.used -= span.end - span.begin;
    span = take(replaced_);
  }
}

// Makes an edge's vector one of living births.
void LivingClasses::refresh(Span& span) {
  if (!has_dead(entries_, span)) return;
  for (int64_t i = span.begin; i < span.end; ++i)
    if (is_dead(entries_.births[i])) refresh_replacement(entries_.births[i]);
  add_refreshed(entries_, span);
  entries_.used -= span.end - span.begin;
  span = take(entries_);
}

void LivingClasses::add(uint64_t pair) {
  if (!vanishes(pair)) add_span(entries_, *vectors_.find(pair));
}

// Moves the sum to the end of a store and leaves it zero.
LivingClasses::Span LivingClasses::take(Store& store) {
  const int64_t begin = int64_t(store.births.size());
  for (int64_t word = first_word_; word <= last_word_; ++word) {
    for (uint64_t rest = sum_[word]; rest; rest &= rest - 1)
      store.births.push_back(uint32_t(64 * word + __builtin_ctzll(rest)));
    sum_[word] = 0;
  }
  first_word_ = int64_t(sum_.size());
  last_word_ = -1;
  const int64_t end = int64_t(store.births.size());
  store.used += end - begin;
  return {begin, end};
}

// Closes the gaps in both stores once they outweigh half of what is used.
void LivingClasses::compact() {
  const auto limit = [](const Store& store) { return store.used + store.used / 2 + 65536; };
  const auto pack = [&](Store& store, const auto& for_each_span) {
    if (int64_t(store.births.size()) <= limit(store)) return;
    std::vector<uint32_t> packed;
    packed.reserve(limit(store) +
                   limit(store) / 8);  // room until the next time: growing would hold three copies at once
    for_each_span([&](Span& span) {
      const int64_t begin = int64_t(packed.size());
      packed.insert(packed.end(), store.births.begin() + span.begin, store.births.begin() + span.end);
      span = {begin, int64_t(packed.size())};
    });
    store.births.swap(packed);
  };
  pack(entries_, [&](const auto& move) { vectors_.for_each(move); });
  pack(replaced_, [&](const auto& move) { std::for_each(replacement_.begin(), replacement_.end(), move); });
}

// Settles an edge with an empty link at once; otherwise finds its bridge, a vertex of its link, as low as possible.
bool LivingClasses::open(Pending& edge) {
  if (const int64_t* birth = empty_link_.find(edge.pair)) {
    if (*birth < 0) return true;
    if (is_dead(*birth)) {
      refresh_replacement(*birth);
      add_span(replaced_, replacement_[*birth]);
    } else {
      widen(*birth, *birth);
      flip(*birth);
    }
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
    if (vanishes(edge.pair)) {
      stack_.pop_back();
      continue;
    }
    if (Span* span = vectors_.find(edge.pair)) {
      refresh(*span);
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
    vectors_.insert(edge.pair, take(entries_));
    stack_.pop_back();
  }
}

int64_t LivingClasses::relate(int64_t u, int64_t v, int64_t a, int64_t b) {
  compact();
  const uint64_t cycle[4] = {pack_pair(u, a), pack_pair(a, v), pack_pair(u, b), pack_pair(b, v)};
  for (uint64_t pair : cycle) evaluate(pair);
  for (uint64_t pair : cycle) add(pair);
  Span relation = take(replaced_);
  if (relation.begin == relation.end) return -1;
  const int64_t youngest = replaced_.births[--relation.end];
  --replaced_.used;
  replacement_[youngest] = relation;
  dead_[youngest >> 6] |= uint64_t{1} << (youngest & 63);
  --living_;
  fresh_[youngest] = ++deaths_;
  return youngest;
}

void LivingClasses::vanish_before(double length) {
  vanished_ = length;
  vectors_.clear();
  for (Span& span : replacement_) span = {};
  for (Store* store : {&entries_, &replaced_}) {
    store->births.clear();
    store->used = 0;
  }
}

}  // namespace geowidth
