// Vectors for the files named *.simd.cpp: the compiler's own vector types and the few operations these lack.
//
// Lanes are added, multiplied, compared and chosen from (`a < b ? a : b`) as single numbers are; one more number on
// either side of an operator stands for all lanes. A vector that is wider than the target's registers is split by the
// compiler, so one text with one order of sums serves every instruction set.
#pragma once

#include <cstdint>

#ifndef GEOWIDTH_VARIANT
#error "lanes.h is for files named *.simd.cpp"
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors wider than the target's registers never cross a call: whatever takes or returns one is inlined.
#define GEOWIDTH_INLINE __attribute__((always_inline))

namespace geowidth::GEOWIDTH_VARIANT {

constexpr double infinity = __builtin_inf();

template <typename T>
constexpr int64_t lanes = 64 / static_cast<int64_t>(sizeof(T));

template <typename T, int64_t count>
struct VectorOf {
  typedef T type __attribute__((vector_size(count * sizeof(T)), aligned(sizeof(T)), may_alias));
};

template <typename T, int64_t count = lanes<T>>
using Vector = typename VectorOf<T, count>::type;

template <typename V>
constexpr int64_t lanes_of = sizeof(V) / sizeof(V{}[0]);

// ---- from numbers and back

template <typename T>
GEOWIDTH_INLINE inline Vector<T> spread(T x) {
  return x - Vector<T>{};
}

template <typename T>
GEOWIDTH_INLINE inline Vector<T> load(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}

template <typename T, typename V>
GEOWIDTH_INLINE inline void store(T* p, V x) {
  *reinterpret_cast<Vector<T, lanes_of<V>>*>(p) = x;
}

// `count` numbers, each converted.
template <typename To, int64_t count = lanes<To>, typename From>
GEOWIDTH_INLINE inline Vector<To, count> load_as(const From* p) {
  const auto from = *reinterpret_cast<const Vector<From, count>*>(p);
  return __builtin_convertvector(from, Vector<To, count>);
}

// The last, shorter piece of a row: `count` numbers (all lanes if there are more), the other lanes `fill`.
template <typename T>
GEOWIDTH_INLINE inline Vector<T> take(const T* p, int64_t count, T fill = 0) {
  if (count >= lanes<T>) return load(p);
  Vector<T> x = spread(fill);
  for (int64_t k = 0; k < count; ++k) x[k] = p[k];
  return x;
}

template <typename T>
GEOWIDTH_INLINE inline void put(T* p, Vector<T> x, int64_t count) {
  if (count >= lanes<T>) return store(p, x);
  for (int64_t k = 0; k < count; ++k) p[k] = x[k];
}

// Calls body(j, count) for every piece of a row of n numbers: whole vectors, then one shorter piece.
template <typename T, typename Body>
GEOWIDTH_INLINE inline void pieces(int64_t n, Body body) {
  int64_t j = 0;
  for (; j + lanes<T> <= n; j += lanes<T>) body(j, lanes<T>);
  if (j < n) body(j, n - j);
}

// ---- lane by lane

template <typename V>
GEOWIDTH_INLINE inline V larger(V a, V b) {
  return a > b ? a : b;
}

template <typename V>
GEOWIDTH_INLINE inline V smaller(V a, V b) {
  return a < b ? a : b;
}

// ---- over the lanes of one vector

// The lanes' sum, in their order.
template <typename T, typename V>
GEOWIDTH_INLINE inline T total(V x) {
  T sum = 0;
  for (int64_t k = 0; k < lanes_of<V>; ++k) sum += x[k];
  return sum;
}

// The sum of eight lanes as a tree: another rounding than `total`, with a third of its latency.
GEOWIDTH_INLINE inline double tree_total(Vector<double> x) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// The largest lane, or `floor` where that is larger; a NaN is never larger.
template <typename T, typename V>
GEOWIDTH_INLINE inline T largest(V x, T floor) {
  for (int64_t k = 0; k < lanes_of<V>; ++k) floor = x[k] > floor ? x[k] : floor;
  return floor;
}

template <typename T, typename V>
GEOWIDTH_INLINE inline T smallest(V x, T ceiling) {
  for (int64_t k = 0; k < lanes_of<V>; ++k) ceiling = x[k] < ceiling ? x[k] : ceiling;
  return ceiling;
}

// ---- eight lanes of 64 bits as one

// Whether any bit of any lane is set; of a comparison, whether any lane holds.
template <typename V>
GEOWIDTH_INLINE inline bool any(V x) {
  static_assert(sizeof x == 64, "a whole vector");
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__AVX2__)
  __m256i half[2];
  __builtin_memcpy(half, &x, sizeof x);
  const __m256i both = _mm256_or_si256(half[0], half[1]);
  return !_mm256_testz_si256(both, both);
#else
  uint64_t both = 0;
  for (int k = 0; k < 8; ++k) both |= static_cast<uint64_t>(x[k]);
  return both != 0;
#endif
}

// A comparison of doubles as a number whose bit k speaks of lane k.
template <typename V>
GEOWIDTH_INLINE inline unsigned mask_of(V comparison) {
  static_assert(sizeof comparison == 64 && lanes_of<V> == 8, "eight doubles were compared");
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)comparison);
#elif defined(__AVX2__)
  __m256d half[2];
  __builtin_memcpy(half, &comparison, sizeof comparison);
  return _mm256_movemask_pd(half[0]) | _mm256_movemask_pd(half[1]) << 4;
#else
  unsigned mask = 0;
  for (int k = 0; k < 8; ++k) mask |= static_cast<unsigned>(comparison[k] & 1) << k;
  return mask;
#endif
}

}  // namespace geowidth::GEOWIDTH_VARIANT
