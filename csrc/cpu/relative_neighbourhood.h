// The edges whose link is empty when they enter the Vietoris-Rips filtration: the relative neighbourhood graph
// (Toussaint 1980) of a distance matrix, ties broken by pair. They alone join components or give birth to classes.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/persistence_kernels.h"

namespace geowidth {

struct EmptyLinkEdge {
  double length;
  uint64_t pair;
  bool joins;  // joins two components; otherwise it gives birth to a degree-one class
};

// Those of length at most `limit`, in increasing order of (length, pair). `neighbours` holds near vertices of each
// vertex (near_vertices), tried first as witnesses against emptiness.
std::vector<EmptyLinkEdge> relative_neighbourhood(const DistanceRows& distances, double limit,
                                                  const int32_t* neighbours);

}  // namespace geowidth
