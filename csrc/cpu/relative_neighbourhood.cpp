#include "cpu/relative_neighbourhood.h"

#include <algorithm>
#include <numeric>

namespace geowidth {
namespace {

bool before(double length_a, uint64_t pair_a, double length_b, uint64_t pair_b) {
  return length_a < length_b || (length_a == length_b && pair_a < pair_b);
}

// Whether a vertex at equal length on one side or both is in the link of {u, v} all the same.
bool tied_witness(const double* p, const double* q, int64_t n, int64_t u, int64_t v) {
  const double length = p[v];
  const uint64_t pair = pack_pair(u, v);
  for (int64_t w = 0; w < n; ++w)
    if (w != u && w != v && before(p[w], pack_pair(u, w), length, pair) && before(q[w], pack_pair(v, w), length, pair))
      return true;
  return false;
}

bool link_is_empty(const DistanceRows& distances, int64_t u, int64_t v, const int32_t* neighbours) {
  const double *p = distances.row(u), *q = distances.row(v), length = p[v];
  for (int64_t k = 0; k < neighbour_count; ++k)
    if (p[neighbours[k]] < length && q[neighbours[k]] < length) return false;
  if (GEOWIDTH_DISPATCH(any_below, p, q, distances.n, length)) return false;
  // u and v themselves are within `length` of both.
  return GEOWIDTH_DISPATCH(count_within, p, q, distances.n, length) <= 2 || !tied_witness(p, q, distances.n, u, v);
}

void mark_joining(std::vector<EmptyLinkEdge>& edges, int64_t n) {
  std::vector<int64_t> parent(n);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int64_t x) {
    while (parent[x] != x) x = parent[x] = parent[parent[x]];
    return x;
  };
  for (auto& edge : edges) {
    const int64_t a = root(first_vertex(edge.pair)), b = root(second_vertex(edge.pair));
    edge.joins = a != b;
    parent[a] = b;
  }
}

}  // namespace

std::vector<EmptyLinkEdge> relative_neighbourhood(const DistanceRows& distances, double limit,
                                                  const int32_t* neighbours) {
  const int64_t n = distances.n;
  std::vector<EmptyLinkEdge> edges;
  std::vector<int32_t> candidates(n);
  for (int64_t u = 0; u < n; ++u) {
    const int64_t found =
        GEOWIDTH_DISPATCH(unwitnessed, distances, u, neighbours + u * neighbour_count, limit, candidates.data());
    for (int64_t k = 0; k < found; ++k) {
      const int64_t v = candidates[k];
      if (link_is_empty(distances, u, v, neighbours + v * neighbour_count))
        edges.push_back({distances.row(u)[v], pack_pair(u, v), false});
    }
  }
  std::sort(edges.begin(), edges.end(),
            [](const EmptyLinkEdge& a, const EmptyLinkEdge& b) { return before(a.length, a.pair, b.length, b.pair); });
  mark_joining(edges, n);
  return edges;
}

}  // namespace geowidth
