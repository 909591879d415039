// Degree-one Vietoris-Rips persistence with Z/2 coefficients; the filtration value of a simplex is its longest edge.
//
// Adding the edge {u, v} after all smaller ones changes homology of degree 0 and 1 only through its link, the vertices
// already joined to both, with the edges already among them: an empty link joins two components or gives birth to a
// class, a connected one changes nothing, and one of c components gives c - 1 relations each of which may kill a class
// (Koyama, Memoli, Robins, Turner, arXiv 2307.16333 and 2412.07805, study the same links). So
//   1. the edges with an empty link, all births among them, are found first (relative_neighbourhood.h);
//   2. the others enter in order (edge_order.h), only while a class lives, and a bit-set pass settles nearly all of
//   them
//      (persistence_kernels.h);
//   3. the few relations are evaluated as vectors over the births (living_classes.h).
// Nothing happens beyond the enclosing radius, the least over vertices of the largest distance to another.
#pragma once

#include <vector>

#include "cpu/persistence_kernels.h"

namespace geowidth {

// The bars (birth, death), birth < death, as consecutive numbers in increasing order; death is infinity for a class
// alive at `threshold`. Entries of infinity are edges that never enter. The matrix must be symmetric with a zero
// diagonal, its entries non-negative and none NaN. Memory: about 2.2 n^2 bytes, and the vectors of step 3: little on
// clustered clouds, but where hundreds of classes live at once (isotropic clouds) 20 n^2 bytes at 1024 points and 57
// n^2 at 1500, measured.
std::vector<double> degree_one_persistence(const DistanceRows& distances, double threshold);

// Whether a matrix is what degree_one_persistence asks for.
bool is_distance_matrix(const DistanceRows& distances);

}  // namespace geowidth
