#include "cpu/persistence_kernels.h"

#include "cpu/lanes.h"

namespace geowidth::GEOWIDTH_VARIANT {
namespace {

using Lengths = Vector<double>;
using Block = Vector<uint64_t>;  // eight words of a bit set

// Lengths from p, of which only `count` exist: the lanes beyond hold infinity.
inline Lengths load_lengths(const double* p, int64_t count) { return take(p, count, infinity); }

inline int lowest_bit(unsigned mask) { return __builtin_ctz(mask); }

inline unsigned has_bit(const uint64_t* bits, int64_t k) { return bits[k >> 6] >> (k & 63) & 1; }
inline void set_bit(uint64_t* bits, int64_t k) { bits[k >> 6] |= uint64_t{1} << (k & 63); }
inline void clear_bit(uint64_t* bits, int64_t k) { bits[k >> 6] &= ~(uint64_t{1} << (k & 63)); }

}  // namespace

double row_maximum(const double* row, int64_t n) {
  Lengths best = 0.0;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) best = larger(best, load(row + k));
  double result = largest(best, 0.0);
  for (; k < n; ++k) result = row[k] > result ? row[k] : result;
  return result;
}

void near_vertices(const double* row, int64_t n, int64_t self, int32_t* out) {
  Lengths best = infinity, place = double(self / 8);
  for (int64_t begin = 0; begin < n; begin += 8) {
    Lengths length = load_lengths(row + begin, n - begin);
    if (self - begin < 8 && self >= begin) {
      double lane[8];
      store(lane, length);
      lane[self - begin] = infinity;
      length = load(lane);
    }
    place = choose<double>(length < best, double(begin / 8), place);
    best = smaller(best, length);
  }
  double lane[8], length[8];
  store(lane, place);
  store(length, best);
  for (int held = 0; held < 8; ++held) {  // insertion sort; lanes that met no vertex name `self`
    const double key = length[held];
    const int32_t vertex = key < infinity ? int32_t(8 * int64_t(lane[held]) + held) : int32_t(self);
    int at = held;
    for (; at > 0 && length[at - 1] > key; --at) {
      length[at] = length[at - 1];
      out[at] = out[at - 1];
    }
    length[at] = key;
    out[at] = vertex;
  }
}

int64_t unwitnessed(const DistanceRows& distances, int64_t u, const int32_t* neighbours, double limit, int32_t* out) {
  const double* row = distances.row(u);
  const int64_t n = distances.n;
  int64_t found = 0;
  for (int64_t begin = u + 1; begin < n; begin += 8) {
    const int64_t left = n - begin;
    const Lengths length = load_lengths(row + begin, left);
    unsigned mask = mask_of(length <= limit);
    if (left < 8) mask &= (1u << left) - 1;
    for (int64_t h = 0; h < neighbour_count && mask; ++h) {
      const int64_t w = neighbours[h];
      mask &= ~(mask_of((load_lengths(distances.row(w) + begin, left) < length) & (row[w] < length)));
    }
    for (; mask; mask &= mask - 1) out[found++] = int32_t(begin + lowest_bit(mask));
  }
  return found;
}

bool any_below(const double* p, const double* q, int64_t n, double limit) {
  int64_t k = 0;
  for (; k + 32 <= n; k += 32) {
    unsigned mask = 0;
    for (int j = 0; j < 32; j += 8) mask |= mask_of((load(p + k + j) < limit) & (load(q + k + j) < limit));
    if (mask) return true;
  }
  for (; k < n; ++k)
    if (p[k] < limit && q[k] < limit) return true;
  return false;
}

int64_t count_within(const double* p, const double* q, int64_t n, double limit) {
  int64_t count = 0, k = 0;
  for (; k + 8 <= n; k += 8) count += __builtin_popcount(mask_of((load(p + k) <= limit) & (load(q + k) <= limit)));
  for (; k < n; ++k) count += p[k] <= limit && q[k] <= limit;
  return count;
}

int64_t lowest_bridge(const double* p, const double* q, int64_t n, double limit) {
  Lengths best = limit;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) best = smaller(best, larger(load(p + k), load(q + k)));
  double lowest = smallest(best, limit);
  for (; k < n; ++k) {
    const double x = p[k] > q[k] ? p[k] : q[k];
    lowest = x < lowest ? x : lowest;
  }
  if (!(lowest < limit)) return -1;
  for (k = 0; k < n; k += 8) {
    const unsigned mask = mask_of((load_lengths(p + k, n - k) <= lowest) & (load_lengths(q + k, n - k) <= lowest));
    if (mask) return k + lowest_bit(mask);
  }
  return -1;
}

int64_t edges_between(const double* row, int64_t u, int64_t n, double low, double high, double scale, uint64_t* out) {
  constexpr double last_key = double((uint64_t{1} << key_bits) - 1);
  int64_t found = 0;
  for (int64_t begin = u + 1; begin < n; begin += 8) {
    const Lengths length = load_lengths(row + begin, n - begin);
    for (unsigned mask = mask_of((low <= length) & (length < high)); mask; mask &= mask - 1) {
      const int64_t v = begin + lowest_bit(mask);
      double key = (row[v] - low) * scale;
      key = key < last_key ? key : last_key;
      out[found++] = uint64_t(key) << pair_bits | uint64_t(u) << vertex_bits | uint64_t(v);
    }
  }
  return found;
}

double smallest_from(const double* row, int64_t begin, int64_t n, double low) {
  double result = infinity;
  for (int64_t k = begin; k < n; ++k) {
    const double x = row[k] >= low ? row[k] : infinity;
    result = x < result ? x : result;
  }
  return result;
}

void bits_below(const double* row, int64_t n, double limit, uint64_t* bits, int64_t words) {
  for (int64_t w = 0; w < words; ++w) {
    uint64_t word = 0;
    for (int64_t j = 0; j < 64 && 64 * w + j < n; j += 8) {
      const int64_t k = 64 * w + j, left = n - k;
      uint64_t mask = mask_of(load_lengths(row + k, left) < limit);
      if (left < 8) mask &= (uint64_t{1} << left) - 1;
      word |= mask << j;
    }
    bits[w] = word;
  }
}

namespace {

// Whether every vertex of the link of {u, v} is `hub` or adjacent to it: then the link is connected.
inline bool dominates(const uint64_t* u, const uint64_t* v, const uint64_t* hub, int64_t words) {
  for (int64_t k = 0; k < words; k += 8)
    if (any(load(u + k) & load(v + k) & ~load(hub + k))) return false;
  return true;
}

// A vertex in both sets, or -1.
inline int64_t common_bit(const uint64_t* a, const uint64_t* b, int64_t words) {
  for (int64_t k = 0; k < words; k += 8) {
    if (!any(load(a + k) & load(b + k))) continue;
    int64_t j = k;
    while (!(a[j] & b[j])) ++j;
    return 64 * j + __builtin_ctzll(a[j] & b[j]);
  }
  return -1;
}

inline int64_t first_bit(const uint64_t* bits, int64_t words) {
  for (int64_t k = 0; k < words; ++k)
    if (bits[k]) return 64 * k + __builtin_ctzll(bits[k]);
  return -1;
}

inline int64_t count_bits(const uint64_t* bits, int64_t words) {
  int64_t count = 0;
  for (int64_t k = 0; k < words; ++k) count += __builtin_popcountll(bits[k]);
  return count;
}

// Moves the neighbours of a vertex from `left` to `reached`; returns whether any are left.
inline bool move_neighbours(const uint64_t* row, uint64_t* left, uint64_t* reached, int64_t words) {
  bool any_left = false;
  for (int64_t k = 0; k < words; k += 8) {
    const Block before = load(left + k), neighbours = load(row + k), rest = before & ~neighbours;
    store(reached + k, load(reached + k) | (before & neighbours));
    store(left + k, rest);
    any_left |= any(rest);
  }
  return any_left;
}

// Removes from `left` the component of `seed` (itself already removed), level by level, each level searched from the
// smaller side; returns whether any vertices are left.
bool remove_component(const LinkGraph& graph, int64_t seed, uint64_t* left, uint64_t* frontier, uint64_t* next) {
  const int64_t words = graph.words;
  for (int64_t k = 0; k < words; ++k) frontier[k] = 0;
  bool any_left = move_neighbours(graph.row(seed), left, frontier, words);
  while (any_left && first_bit(frontier, words) >= 0) {
    for (int64_t k = 0; k < words; ++k) next[k] = 0;
    if (count_bits(left, words) <= count_bits(frontier, words)) {
      for (int64_t k = 0; k < words; ++k)
        for (uint64_t rest = left[k]; rest; rest &= rest - 1) {
          const int64_t w = 64 * k + __builtin_ctzll(rest);
          if (common_bit(graph.row(w), frontier, words) >= 0) set_bit(next, w);
        }
      uint64_t rest = 0;
      for (int64_t k = 0; k < words; ++k) rest |= left[k] &= ~next[k];
      any_left = rest != 0;
    } else {
      for (int64_t k = 0; k < words && any_left; ++k)
        for (uint64_t rest = frontier[k]; rest && any_left; rest &= rest - 1)
          any_left = move_neighbours(graph.row(64 * k + __builtin_ctzll(rest)), left, next, words);
    }
    uint64_t* swap = frontier;
    frontier = next;
    next = swap;
  }
  return any_left;
}

// The number of components of the link of {u, v}, one vertex of each in graph.representatives, first `start`.
int64_t split_link(const LinkGraph& graph, const uint64_t* u, const uint64_t* v, int64_t start) {
  uint64_t* left = graph.scratch;
  for (int64_t k = 0; k < graph.words; k += 8) store(left + k, load(u + k) & load(v + k));
  int64_t components = 0;
  for (int64_t seed = start; seed >= 0; seed = first_bit(left, graph.words)) {
    clear_bit(left, seed);
    graph.representatives[components++] = int32_t(seed);
    if (!remove_component(graph, seed, left, left + graph.words, left + 2 * graph.words)) break;
  }
  return components;
}

// Whether the link of {u, v} is connected as far as a quick look tells: from `start` and its neighbours, each vertex
// left is joined to what is reached through a common neighbour, whose own neighbours are reached with it.
bool quickly_connected(const LinkGraph& graph, const uint64_t* u, const uint64_t* v, int64_t start) {
  const int64_t words = graph.words;
  uint64_t *left = graph.scratch, *reached = left + words;
  const uint64_t* hub = graph.row(start);
  for (int64_t k = 0; k < words; k += 8) {
    const Block link = load(u + k) & load(v + k), neighbours = load(hub + k);
    store(reached + k, link & neighbours);
    store(left + k, link & ~neighbours);
  }
  for (int64_t k = 0; k < words; k += 8)
    while (any(load(left + k))) {
      const uint64_t* vertex = graph.row(64 * k + first_bit(left + k, 8));
      const int64_t bridge = common_bit(reached, vertex, words);
      if (bridge < 0) return false;
      const uint64_t* other = graph.row(bridge);
      for (int64_t j = k; j < words; j += 8) {
        const Block before = load(left + j), near = load(vertex + j) | load(other + j);
        store(reached + j, load(reached + j) | (before & near));
        store(left + j, before & ~near);
      }
    }
  return true;
}

// Looks for a vertex adjacent to all others of the link of {u, v}: those that settled the last edge of u and of v, then
// their nearest vertices. Returns it, or -1; `start` is then one of those tried that are in the link, or -1.
inline int64_t find_hub(const LinkGraph& graph, int64_t u, int64_t v, int64_t& start) {
  const uint64_t *row_u = graph.row(u), *row_v = graph.row(v);
  const int32_t candidates[4] = {graph.last_hub[u], graph.last_hub[v], graph.neighbours[u * neighbour_count],
                                 graph.neighbours[v * neighbour_count]};
  unsigned inside = 0;  // all four looked up without a branch
  for (int k = 0; k < 4; ++k) inside |= unsigned(has_bit(row_u, candidates[k]) & has_bit(row_v, candidates[k])) << k;
  start = inside ? candidates[lowest_bit(inside)] : -1;
  for (; inside; inside &= inside - 1) {
    const int64_t w = candidates[lowest_bit(inside)];
    if (dominates(row_u, row_v, graph.row(w), graph.words)) return w;
  }
  return -1;
}

}  // namespace

LinkEvent settle_edges(const LinkGraph& graph, const uint64_t* edges, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t u = first_vertex(edges[i]), v = second_vertex(edges[i]);
    uint64_t *row_u = graph.row(u), *row_v = graph.row(v);
    int64_t start;
    const int64_t hub = find_hub(graph, u, v, start);
    if (hub >= 0) {
      graph.last_hub[u] = graph.last_hub[v] = int32_t(hub);
    } else {
      if (start < 0) start = common_bit(row_u, row_v, graph.words);
      if (start < 0) return {i, 0};
      if (!quickly_connected(graph, row_u, row_v, start)) {
        const int64_t components = split_link(graph, row_u, row_v, start);
        if (components > 1) return {i, components};
      }
    }
    set_bit(row_u, v);
    set_bit(row_v, u);
  }
  return {end, 1};
}

}  // namespace geowidth::GEOWIDTH_VARIANT
