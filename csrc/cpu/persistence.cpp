#include "cpu/persistence.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cpu/edge_order.h"
#include "cpu/living_classes.h"
#include "cpu/relative_neighbourhood.h"

namespace geowidth {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double enclosing_radius(const DistanceRows& distances) {
  double radius = infinity;
  for (int64_t i = 0; i < distances.n; ++i)
    radius = std::min(radius, GEOWIDTH_DISPATCH(row_maximum, distances.row(i), distances.n));
  return radius;
}

std::vector<int32_t> all_near(const DistanceRows& distances) {
  std::vector<int32_t> near(distances.n * neighbour_count);
  for (int64_t i = 0; i < distances.n; ++i)
    GEOWIDTH_DISPATCH(near_vertices, distances.row(i), distances.n, i, near.data() + i * neighbour_count);
  return near;
}

// One walk through the filtration.
class Filtration {
 public:
  Filtration(const DistanceRows& distances, double threshold);
  std::vector<double> bars();

 private:
  void make_graph();
  void walk();
  void walk_stretch(const EdgeOrder& order);
  void enter_shorter(double length);
  void enter(uint64_t edge);
  void meet(uint64_t edge, int64_t components);
  bool beyond(const EdgeOrder& order) const;

  DistanceRows distances_;
  double limit_;
  std::vector<int32_t> near_, last_hub_, representatives_;
  std::vector<EmptyLinkEdge> edges_, births_;  // with an empty link; those of them that give birth
  std::vector<double> death_;
  size_t next_birth_ = 0;
  std::unique_ptr<LivingClasses> classes_;
  std::vector<uint64_t> storage_, scratch_;
  LinkGraph graph_;
};

Filtration::Filtration(const DistanceRows& distances, double threshold)
    : distances_(distances),
      limit_(std::min({enclosing_radius(distances), threshold, std::numeric_limits<double>::max()})),
      near_(all_near(distances)), edges_(relative_neighbourhood(distances, limit_, near_.data())) {
  std::copy_if(edges_.begin(), edges_.end(), std::back_inserter(births_), [](const auto& e) { return !e.joins; });
  death_.assign(births_.size(), infinity);
}

// The bit sets, their rows on cache lines.
void Filtration::make_graph() {
  const int64_t n = distances_.n, words = (n + 511) / 512 * 8;
  storage_.resize(n * words + 3 * words + 8);
  void* start = storage_.data();
  size_t space = storage_.size() * sizeof(uint64_t);
  auto* rows = static_cast<uint64_t*>(std::align(64, (n + 3) * words * sizeof(uint64_t), start, space));
  last_hub_.resize(n);
  std::iota(last_hub_.begin(), last_hub_.end(), 0);
  representatives_.resize(n);
  graph_ = {rows, words, last_hub_.data(), near_.data(), rows + n * words, representatives_.data()};
}

// Makes the graph that of all edges shorter than `length`.
void Filtration::enter_shorter(double length) {
  for (int64_t i = 0; i < distances_.n; ++i) {
    uint64_t* row = graph_.row(i);
    GEOWIDTH_DISPATCH(bits_below, distances_.row(i), distances_.n, length, row, graph_.words);
    row[i >> 6] |= uint64_t{1} << (i & 63);
  }
}

void Filtration::enter(uint64_t edge) {
  const int64_t u = first_vertex(edge), v = second_vertex(edge);
  graph_.row(u)[v >> 6] |= uint64_t{1} << (v & 63);
  graph_.row(v)[u >> 6] |= uint64_t{1} << (u & 63);
}

// Whether no class is going to live before the end of the present stretch.
bool Filtration::beyond(const EdgeOrder& order) const {
  return next_birth_ == births_.size() || births_[next_birth_].length > order.end_length();
}

// An edge whose link is not connected: a birth, the join of two components, or relations.
void Filtration::meet(uint64_t edge, int64_t components) {
  const int64_t u = first_vertex(edge), v = second_vertex(edge);
  const double length = distances_.row(u)[v];
  if (components == 0) {
    if (next_birth_ < births_.size() && births_[next_birth_].pair == pair_of(edge)) {
      classes_->give_birth();
      ++next_birth_;
    }
    return;
  }
  for (int64_t k = 1; k < components && classes_->living() > 0; ++k) {
    const int64_t killed = classes_->relate(u, v, representatives_[0], representatives_[k]);
    if (killed >= 0) death_[killed] = length;
  }
  if (classes_->living() == 0) classes_->vanish_before(length);
}

void Filtration::walk_stretch(const EdgeOrder& order) {
  const uint64_t* edges = order.edges();
  for (int64_t i = 0; i < order.size(); ++i) {
    if (classes_->living() == 0) {
      if (beyond(order)) return;
      if (births_[next_birth_].pair == pair_of(edges[i])) meet(edges[i], 0);
    } else {
      const LinkEvent event = GEOWIDTH_DISPATCH(settle_edges, graph_, edges, i, order.size());
      i = event.position;
      if (i == order.size()) return;
      meet(edges[i], event.components);
    }
    enter(edges[i]);
  }
}

void Filtration::walk() {
  EdgeOrder order(distances_, limit_);
  for (;;) {
    if (classes_->living() == 0) {
      if (next_birth_ == births_.size()) return;
      if (beyond(order)) {
        enter_shorter(births_[next_birth_].length);
        order.skip_to(births_[next_birth_].length);
      }
    }
    if (!order.advance()) return;
    walk_stretch(order);
  }
}

std::vector<double> Filtration::bars() {
  if (!births_.empty()) {
    make_graph();
    classes_ = std::make_unique<LivingClasses>(distances_, edges_);
    enter_shorter(0);
    walk();
  }
  std::vector<std::pair<double, double>> found;
  for (size_t i = 0; i < births_.size(); ++i)
    if (births_[i].length < death_[i]) found.emplace_back(births_[i].length, death_[i]);
  std::sort(found.begin(), found.end());
  std::vector<double> result;
  for (const auto& [birth, death] : found) result.insert(result.end(), {birth, death});
  return result;
}

}  // namespace

std::vector<double> degree_one_persistence(const DistanceRows& distances, double threshold) {
  if (distances.n >= maximum_vertices) throw std::invalid_argument("more than 1048575 points");
  if (distances.n < 4) return {};
  return Filtration(distances, threshold).bars();
}

bool is_distance_matrix(const DistanceRows& distances) {
  constexpr int64_t tile = 32;  // of the matrix and its mirror image, both in cache
  const int64_t n = distances.n;
  for (int64_t i = 0; i < n; i += tile)
    for (int64_t j = 0; j <= i; j += tile) {
      bool right = true;
      for (int64_t k = i; k < std::min(i + tile, n); ++k)
        for (int64_t m = j; m < std::min(j + tile, n); ++m) {
          const double length = distances.row(k)[m];
          right &= length >= 0 && length == distances.row(m)[k] && (k != m || length == 0);
        }
      if (!right) return false;
    }
  return true;
}

}  // namespace geowidth
