// Vector kernels of the degree-one persistence engine (persistence.h), compiled once per instruction set.
//
// A distance matrix is read row by row: n rows of `stride` doubles. An edge {u < v} is packed into 64 bits as
// key(24) u(20) v(20); without its key it is the pair's number, which breaks ties between equal lengths.
#pragma once

#include <cstdint>

#include "cpu/dispatch.h"

namespace geowidth {

constexpr int vertex_bits = 20;
constexpr int pair_bits = 2 * vertex_bits;
constexpr int key_bits = 64 - pair_bits;
constexpr int64_t neighbour_count = 8;  // near vertices kept of each vertex
constexpr int64_t maximum_vertices = int64_t{1} << vertex_bits;

inline uint64_t pack_pair(uint64_t u, uint64_t v) { return u < v ? u << vertex_bits | v : v << vertex_bits | u; }
inline uint64_t pair_of(uint64_t edge) { return edge & ((uint64_t{1} << pair_bits) - 1); }
inline int64_t first_vertex(uint64_t edge) { return edge >> vertex_bits & (maximum_vertices - 1); }
inline int64_t second_vertex(uint64_t edge) { return edge & (maximum_vertices - 1); }

struct DistanceRows {
  const double* data;
  int64_t n;
  int64_t stride;

  const double* row(int64_t i) const { return data + i * stride; }
  double length(uint64_t edge) const { return row(first_vertex(edge))[second_vertex(edge)]; }
};

// The graph of the edges entered so far, one row of `words` (a multiple of 8) 64-bit words per vertex, with every
// diagonal bit set, and what the search for a link's hub remembers.
struct LinkGraph {
  uint64_t* rows;
  int64_t words;
  int32_t* last_hub;          // per vertex: the hub that settled its last edge, or itself
  const int32_t* neighbours;  // per vertex: `neighbour_count` near vertices, nearest first
  uint64_t* scratch;          // 3 * words: what is left of a link, two frontiers
  int32_t* representatives;   // n: one vertex of each component of a link

  uint64_t* row(int64_t vertex) const { return rows + vertex * words; }
};

// Where settle_edges stopped: at edge `position`, whose link has `components` components (never one), with one vertex
// of each in LinkGraph::representatives. position == end when every edge was settled.
struct LinkEvent {
  int64_t position;
  int64_t components;
};

}  // namespace geowidth

// The largest of n entries (0 if there are none).
GEOWIDTH_DECLARE(double row_maximum(const double* row, int64_t n))

// Writes neighbour_count vertices near `self`, nearest first: of each residue class modulo 8 the nearest, hence the
// nearest of all among them; `self` where a class has no other. Near enough for hubs and witnesses, and found in one
// pass.
GEOWIDTH_DECLARE(void near_vertices(const double* row, int64_t n, int64_t self, int32_t* out))

// Writes every v > u with d(u,v) <= limit and for which none of u's neighbours w is closer to both u and v than they
// are to each other; returns how many.
GEOWIDTH_DECLARE(int64_t unwitnessed(const DistanceRows& distances, int64_t u, const int32_t* neighbours, double limit,
                                     int32_t* out))

// Whether some k has max(p[k], q[k]) < limit.
GEOWIDTH_DECLARE(bool any_below(const double* p, const double* q, int64_t n, double limit))

// How many k have max(p[k], q[k]) <= limit.
GEOWIDTH_DECLARE(int64_t count_within(const double* p, const double* q, int64_t n, double limit))

// The first k of least max(p[k], q[k]) if that is below limit, or -1.
GEOWIDTH_DECLARE(int64_t lowest_bridge(const double* p, const double* q, int64_t n, double limit))

// Appends to `out` the edges {u, v > u} with low <= length < high, keyed by (length - low) * scale; returns how many.
GEOWIDTH_DECLARE(int64_t edges_between(const double* row, int64_t u, int64_t n, double low, double high, double scale,
                                       uint64_t* out))

// The smallest entry of row[begin, n) that is at least `low`, or infinity.
GEOWIDTH_DECLARE(double smallest_from(const double* row, int64_t begin, int64_t n, double low))

// Sets bit k of `bits` where row[k] < limit, for k < n, and clears the others.
GEOWIDTH_DECLARE(void bits_below(const double* row, int64_t n, double limit, uint64_t* bits, int64_t words))

// Enters edges[begin, end) one by one while their links are connected.
GEOWIDTH_DECLARE(LinkEvent settle_edges(const LinkGraph& graph, const uint64_t* edges, int64_t begin, int64_t end))
