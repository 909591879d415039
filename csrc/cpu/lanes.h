// Vectors for the files named *.simd.cpp: 64 bytes of numbers, in as many registers as the instruction set needs.
//
// Lanes are added, multiplied and compared as single numbers are; one number on either side of an operator stands for
// all lanes. As every instruction set has the same lanes, one text with one order of sums serves them all. (The
// compilers' own vector types do that too, but compare lane by lane what is wider than a register.)
#pragma once

#include <cstdint>

#ifndef GEOWIDTH_VARIANT
#error "lanes.h is for files named *.simd.cpp"
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Nothing that takes or returns a vector is ever called: it is inlined.
#define GEOWIDTH_INLINE __attribute__((always_inline))

namespace geowidth::GEOWIDTH_VARIANT {

#if defined(__AVX512F__)
constexpr int64_t register_bytes = 64;
#elif defined(__AVX2__)
constexpr int64_t register_bytes = 32;
#else
constexpr int64_t register_bytes = 16;
#endif
constexpr int64_t vector_bytes = 64;
constexpr double infinity = __builtin_inf();

template <typename T>
constexpr int64_t lanes = vector_bytes / static_cast<int64_t>(sizeof(T));
template <typename T>
constexpr int64_t register_lanes = register_bytes / static_cast<int64_t>(sizeof(T));

template <typename T, int64_t count>
struct RegisterOf {
  typedef T type __attribute__((vector_size(count * sizeof(T)), aligned(sizeof(T)), may_alias));
};

// The compiler's own vector type, by default of one whole register.
template <typename T, int64_t count = register_lanes<T>>
using Register = typename RegisterOf<T, count>::type;

template <int64_t size>
struct IntegerOf;
template <>
struct IntegerOf<4> {
  using type = int32_t;
};
template <>
struct IntegerOf<8> {
  using type = int64_t;
};

// Calls body(p) for every register p of a vector.
template <typename Body>
GEOWIDTH_INLINE inline void for_parts(Body body) {
  constexpr int64_t parts = vector_bytes / register_bytes;
  body(0);
  if constexpr (parts > 1) body(1);
  if constexpr (parts > 2) body(2);
  if constexpr (parts > 3) body(3);
}

#define GEOWIDTH_OPERATOR(Result, op)                                                  \
  GEOWIDTH_INLINE friend inline Result operator op(const Vector& a, const Vector& b) { \
    Result r;                                                                          \
    for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = a.part[p] op b.part[p]; });     \
    return r;                                                                          \
  }

template <typename T>
struct Vector {
  using Comparison = Vector<typename IntegerOf<sizeof(T)>::type>;  // all bits of a lane that holds, none of another
  Register<T> part[vector_bytes / register_bytes];

  Vector() = default;
  GEOWIDTH_INLINE Vector(T x) {
    for_parts([&](int p) GEOWIDTH_INLINE { part[p] = x - Register<T>{}; });
  }

  GEOWIDTH_OPERATOR(Vector, +)
  GEOWIDTH_OPERATOR(Vector, -)
  GEOWIDTH_OPERATOR(Vector, *)
  GEOWIDTH_OPERATOR(Vector, &)
  GEOWIDTH_OPERATOR(Vector, |)
  GEOWIDTH_OPERATOR(Comparison, <)
  GEOWIDTH_OPERATOR(Comparison, <=)
  GEOWIDTH_OPERATOR(Comparison, >)
  GEOWIDTH_OPERATOR(Comparison, ==)

  GEOWIDTH_INLINE Vector& operator+=(const Vector& b) { return *this = *this + b; }
  GEOWIDTH_INLINE Vector& operator|=(const Vector& b) { return *this = *this | b; }
  GEOWIDTH_INLINE Vector operator-() const {
    Vector r;
    for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = -part[p]; });
    return r;
  }
  GEOWIDTH_INLINE Vector operator~() const {
    Vector r;
    for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = ~part[p]; });
    return r;
  }
  GEOWIDTH_INLINE Vector operator<<(int count) const {
    Vector r;
    for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = part[p] << count; });
    return r;
  }
};
#undef GEOWIDTH_OPERATOR

// ---- from memory and back

// `lanes` numbers, converted where To is another type.
template <typename To, typename From>
GEOWIDTH_INLINE inline Vector<To> load_as(const From* p) {
  constexpr int64_t count = register_lanes<To>;
  Vector<To> r;
  for_parts([&](int q) GEOWIDTH_INLINE {
    r.part[q] = __builtin_convertvector(*reinterpret_cast<const Register<From, count>*>(p + q * count), Register<To>);
  });
  return r;
}

template <typename T>
GEOWIDTH_INLINE inline Vector<T> load(const T* p) {
  return load_as<T>(p);
}

template <typename T>
GEOWIDTH_INLINE inline void store(T* p, const Vector<T>& x) {
  for_parts([&](int q) GEOWIDTH_INLINE { *reinterpret_cast<Register<T>*>(p + q * register_lanes<T>) = x.part[q]; });
}

// The last, shorter piece of a row: `count` numbers (all lanes if there are more), the other lanes `fill`.
template <typename T>
GEOWIDTH_INLINE inline Vector<T> take(const T* p, int64_t count, T fill = 0) {
  if (count >= lanes<T>) return load(p);
  T padded[lanes<T>];
  store(padded, Vector<T>(fill));
  for (int64_t k = 0; k < count; ++k) padded[k] = p[k];
  return load(padded);
}

template <typename T>
GEOWIDTH_INLINE inline void put(T* p, const Vector<T>& x, int64_t count) {
  if (count >= lanes<T>) return store(p, x);
  T whole[lanes<T>];
  store(whole, x);
  for (int64_t k = 0; k < count; ++k) p[k] = whole[k];
}

// Calls body(j, count) for every piece of a row of n numbers: whole vectors, then one shorter piece.
template <typename T, typename Body>
GEOWIDTH_INLINE inline void pieces(int64_t n, Body body) {
  int64_t j = 0;
  for (; j + lanes<T> <= n; j += lanes<T>) body(j, lanes<T>);
  if (j < n) body(j, n - j);
}

// ---- lane by lane

template <typename T>
GEOWIDTH_INLINE inline Vector<T> choose(const typename Vector<T>::Comparison& which, const Vector<T>& yes,
                                        const Vector<T>& no) {
  Vector<T> r;
  for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = which.part[p] ? yes.part[p] : no.part[p]; });
  return r;
}

template <typename T>
GEOWIDTH_INLINE inline Vector<T> larger(const Vector<T>& a, const Vector<T>& b) {
  return choose(a > b, a, b);
}

template <typename T>
GEOWIDTH_INLINE inline Vector<T> smaller(const Vector<T>& a, const Vector<T>& b) {
  return choose(a < b, a, b);
}

// The same bits, read as another type of that size.
template <typename To, typename From>
GEOWIDTH_INLINE inline Vector<To> reread(const Vector<From>& x) {
  Vector<To> r;
  for_parts([&](int p) GEOWIDTH_INLINE { r.part[p] = (Register<To>)x.part[p]; });
  return r;
}

// ---- over the lanes of one vector

// The lanes' sum, in their order.
template <typename T>
GEOWIDTH_INLINE inline T total(const Vector<T>& x) {
  T lane[lanes<T>], sum = 0;
  store(lane, x);
  for (T value : lane) sum += value;
  return sum;
}

// The sum as a tree: another rounding than `total`, with a third of its latency.
GEOWIDTH_INLINE inline double tree_total(const Vector<double>& x) {
  double lane[8];
  store(lane, x);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// The largest lane, or `floor` where that is larger; a NaN is never larger.
template <typename T>
GEOWIDTH_INLINE inline T largest(const Vector<T>& x, T floor) {
  T lane[lanes<T>];
  store(lane, x);
  for (T value : lane) floor = value > floor ? value : floor;
  return floor;
}

template <typename T>
GEOWIDTH_INLINE inline T smallest(const Vector<T>& x, T ceiling) {
  T lane[lanes<T>];
  store(lane, x);
  for (T value : lane) ceiling = value < ceiling ? value : ceiling;
  return ceiling;
}

// Whether any bit of any lane is set; of a comparison, whether any lane holds.
template <typename T>
GEOWIDTH_INLINE inline bool any(const Vector<T>& x) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)x.part[0], (__m512i)x.part[0]) != 0;
#elif defined(__AVX2__)
  const __m256i both = (__m256i)(x.part[0] | x.part[1]);
  return !_mm256_testz_si256(both, both);
#else
  const auto two = (Register<uint64_t>)((x.part[0] | x.part[1]) | (x.part[2] | x.part[3]));
  return (two[0] | two[1]) != 0;
#endif
}

// A comparison of doubles as a number whose bit k speaks of lane k.
GEOWIDTH_INLINE inline unsigned mask_of(const Vector<int64_t>& comparison) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)comparison.part[0]);
#elif defined(__AVX2__)
  return _mm256_movemask_pd((__m256d)comparison.part[0]) | _mm256_movemask_pd((__m256d)comparison.part[1]) << 4;
#else
  unsigned mask = 0;
  for_parts([&](int p) GEOWIDTH_INLINE {
    mask |= static_cast<unsigned>((comparison.part[p][0] & 1) | (comparison.part[p][1] & 2)) << 2 * p;
  });
  return mask;
#endif
}

}  // namespace geowidth::GEOWIDTH_VARIANT
