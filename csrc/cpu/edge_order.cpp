#include "cpu/edge_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace geowidth {
namespace {

constexpr int64_t sample_size = 1024;
constexpr int64_t smallest_capacity = 8192;
constexpr double infinity = std::numeric_limits<double>::infinity();

uint64_t scramble(uint64_t x) {  // splitmix64 (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Maps [low, high) onto the keys; 0 (all keys equal) where the division has no finite answer.
double key_scale(double low, double high) {
  const double scale = double(uint64_t{1} << key_bits) / (high - low);
  return std::isfinite(scale) ? scale : 0;
}

}  // namespace

EdgeOrder::EdgeOrder(const DistanceRows& distances, double limit) : distances_(distances) {
  end_ = std::nextafter(limit, infinity);
  capacity_ = std::max(smallest_capacity, distances.n * distances.n / 8);
  sample();
}

void EdgeOrder::sample() {
  const uint64_t n = distances_.n;
  for (uint64_t s = 0; s < sample_size; ++s) {
    const uint64_t random = scramble(s), i = (random >> 32) % n, j = (random & 0xffffffff) % n;
    if (i != j && distances_.row(i)[j] < end_) sample_.push_back(distances_.row(i)[j]);
  }
  std::sort(sample_.begin(), sample_.end());
  edges_per_sample_ = 0.5 * double(n) * double(n) / double(sample_size);
}

// Where a stretch from low_ would hold about three quarters of the capacity.
double EdgeOrder::planned_end() const {
  const int64_t begin = std::lower_bound(sample_.begin(), sample_.end(), low_) - sample_.begin();
  const int64_t step = std::max<int64_t>(1, int64_t(0.75 * double(capacity_) / edges_per_sample_));
  if (begin + step >= int64_t(sample_.size())) return end_;
  return std::max(sample_[begin + step], std::nextafter(low_, infinity));
}

bool EdgeOrder::collect(double low, double high) {
  const double scale = key_scale(low, high);
  const int64_t n = distances_.n;
  edges_.resize(capacity_ + n);
  size_ = 0;
  for (int64_t u = 0; u + 1 < n; ++u) {
    size_ += GEOWIDTH_DISPATCH(edges_between, distances_.row(u), u, n, low, high, scale, edges_.data() + size_);
    if (size_ > capacity_) return false;
  }
  return true;
}

// A smaller end after a stretch that did not fit, or `low`'s successor among the lengths when that one length alone may
// not fit.
double EdgeOrder::shrink(double low) const {
  double smallest = infinity;
  for (int64_t u = 0; u + 1 < distances_.n; ++u)
    smallest = std::min(smallest, GEOWIDTH_DISPATCH(smallest_from, distances_.row(u), u + 1, distances_.n, low));
  std::vector<double> lengths(size_);
  for (int64_t i = 0; i < size_; ++i) lengths[i] = distances_.length(edges_[i]);
  std::nth_element(lengths.begin(), lengths.begin() + size_ / 2, lengths.end());
  return std::max(lengths[size_ / 2], std::nextafter(smallest, infinity));
}

// The next rows' edges of length exactly low_: they already stand in the order of their pairs.
void EdgeOrder::collect_ties() {
  const int64_t n = distances_.n;
  const double high = std::nextafter(low_, infinity);
  edges_.resize(capacity_ + n);
  size_ = 0;
  for (; tie_row_ + 1 < n && size_ <= capacity_; ++tie_row_)
    size_ +=
        GEOWIDTH_DISPATCH(edges_between, distances_.row(tie_row_), tie_row_, n, low_, high, 0.0, edges_.data() + size_);
  if (tie_row_ + 1 < n) return;
  tie_row_ = -1;
  low_ = high;
}

// Loads [low_, high) for the largest tried `high` that fits; a single length that does not fit starts a run of ties.
void EdgeOrder::collect_stretch() {
  double high = planned_end();
  bool fits = collect(low_, high);
  while (!fits) {
    const double smaller = shrink(low_);
    if (!(smaller < high)) break;
    high = smaller;
    fits = collect(low_, high);
  }
  if (fits) {
    sort(low_, high);
    low_ = high;
  } else {  // [low_, high) holds one length only: the one just below `high`
    low_ = std::nextafter(high, -infinity);
    tie_row_ = 0;
    size_ = 0;
  }
}

bool EdgeOrder::advance() {
  while (low_ < end_) {
    if (tie_row_ >= 0)
      collect_ties();
    else
      collect_stretch();
    if (size_ > 0) return true;
  }
  return false;
}

void EdgeOrder::skip_to(double length) {
  if (length <= low_) return;
  low_ = length;
  tie_row_ = -1;
}

// Least significant digit first on the two halves of the key. The edges come in the order of their pairs and the sort
// is stable, so equal lengths end in the order of their pairs too.
void EdgeOrder::sort(double low, double high) {
  constexpr int digit_bits = key_bits / 2;
  constexpr uint64_t digits = uint64_t{1} << digit_bits;
  if (key_scale(low, high) > 0) {
    std::array<std::vector<uint32_t>, 2> place;
    for (auto& counts : place) counts.assign(digits + 1, 0);
    for (int64_t i = 0; i < size_; ++i) {
      ++place[0][(edges_[i] >> pair_bits & (digits - 1)) + 1];
      ++place[1][(edges_[i] >> (pair_bits + digit_bits)) + 1];
    }
    spare_.resize(edges_.size());
    for (int pass = 0; pass < 2; ++pass) {
      auto& next = place[pass];
      for (uint64_t d = 1; d < digits; ++d) next[d] += next[d - 1];
      const int shift = pair_bits + pass * digit_bits;
      for (int64_t i = 0; i < size_; ++i) spare_[next[edges_[i] >> shift & (digits - 1)]++] = edges_[i];
      edges_.swap(spare_);
    }
  }
  sort_equal_keys();
}

void EdgeOrder::sort_equal_keys() {
  for (int64_t begin = 0, end; begin < size_; begin = end) {
    const uint64_t key = edges_[begin] >> pair_bits;
    for (end = begin + 1; end < size_ && edges_[end] >> pair_bits == key;) ++end;
    if (end - begin == 1) continue;
    const auto shorter = [this](uint64_t a, uint64_t b) { return distances_.length(a) < distances_.length(b); };
    const auto first = edges_.begin() + begin, last = edges_.begin() + end;
    if (std::is_sorted(first, last, shorter)) continue;
    std::sort(first, last, [this](uint64_t a, uint64_t b) {
      const double length_a = distances_.length(a), length_b = distances_.length(b);
      return length_a < length_b || (length_a == length_b && a < b);
    });
  }
}

}  // namespace geowidth
