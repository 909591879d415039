// Numbers of about 106 bits as an unevaluated sum of two doubles (Dekker 1971; Knuth, TAOCP 2, 4.2.2).
#pragma once

#include <cmath>

namespace geowidth {

struct DoubleDouble {
  double high = 0, low = 0;

  DoubleDouble() = default;
  DoubleDouble(double value) : high(value) {}  // NOLINT: a double is one of these
  DoubleDouble(double h, double l) : high(h), low(l) {}

  // a + b without error.
  static DoubleDouble sum(double a, double b) {
    const double s = a + b, t = s - a;
    return {s, (a - (s - t)) + (b - t)};
  }
};

inline DoubleDouble operator-(const DoubleDouble& a) { return {-a.high, -a.low}; }
inline DoubleDouble operator+(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble high = DoubleDouble::sum(a.high, b.high), low = DoubleDouble::sum(a.low, b.low);
  const DoubleDouble once = DoubleDouble::sum(high.high, high.low + low.high);
  return DoubleDouble::sum(once.high, once.low + low.low);
}
inline DoubleDouble operator-(const DoubleDouble& a, const DoubleDouble& b) { return a + -b; }
inline bool operator<(const DoubleDouble& a, const DoubleDouble& b) {
  return a.high < b.high || (a.high == b.high && a.low < b.low);
}

inline double difference(double a, double b, double) { return a - b; }
inline DoubleDouble difference(double a, double b, DoubleDouble) { return DoubleDouble::sum(a, -b); }

inline double square(double a) { return a * a; }
inline DoubleDouble square(const DoubleDouble& a) {
  const double high = a.high * a.high, low = std::fma(a.high, a.high, -high);
  return DoubleDouble::sum(high, low + 2 * a.high * a.low);
}

inline double rounded(double a) { return a; }
inline double rounded(const DoubleDouble& a) { return a.high; }

}  // namespace geowidth
