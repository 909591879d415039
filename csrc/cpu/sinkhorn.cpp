#include "cpu/sinkhorn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/anderson.h"
#include "cpu/thread_pool.h"

namespace geowidth {
namespace {

constexpr int64_t slabs = 32;

template <typename T>
class Sinkhorn {
 public:
  Sinkhorn(const LogKernel<T>& kernel, const T* a, const T* b, T* f, T* g, T* k, T* u, T* v,
           const SinkhornSettings& settings)
      : kernel_(kernel), n_(kernel.n), m_(kernel.m), a_(a), b_(b), f_(f), g_(g), k_(k), u_(u), v_(v),
        settings_(settings), slab_((n_ + slabs - 1) / slabs), partial_(slabs * m_), column_(m_), x_(m_), y_(m_) {}

  SinkhornOutcome run() {
    form_kernel();
    bool good = iterate();
    for (int attempt = 0; attempt < most_entries && !finished(); ++attempt) {
      if (good) {
        absorb();
        form_kernel();
      } else {
        enter_by_log_domain();
      }
      good = iterate();
    }
    if (!good) {
      enter_by_log_domain();
      visit();
    }
    absorb();
    return outcome_;
  }

 private:
  // Potentials that differ from the right ones by more than this leave the safe range of v.
  static constexpr double range = sizeof(T) == sizeof(float) ? 16 : 150;
  static constexpr int most_entries = 60;
  // After so many visits without a smaller error rounding is all that is left, if the error is that small. A larger one
  // may stand for long while potentials move on, where points compete at a small eps.
  static constexpr int64_t patience = 30, long_patience = 1000;
  static constexpr double rounding = sizeof(T) == sizeof(float) ? 1e-4 : 1e-9;

  bool finished() const {
    return outcome_.error <= settings_.tolerance || outcome_.passes >= settings_.most || stalled_;
  }

  template <typename Body>
  void for_rows(Body body) const {
    parallel_for(n_, 8, settings_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  template <typename Body>
  void for_slabs(Body body) const {
    parallel_for((n_ + slab_ - 1) / slab_, 1, settings_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) body(s, s * slab_, std::min(n_, (s + 1) * slab_));
    });
  }

  void form_kernel() {
    for_rows([&](int64_t i) {
      GEOWIDTH_DISPATCH(sinkhorn_kernel_row, kernel_.x + i * m_, m_, kernel_.scale, kernel_.r[i], kernel_.s, f_[i], g_,
                        k_ + i * m_);
    });
    ++outcome_.entries;
    std::fill(x_.begin(), x_.end(), 0.0);
    outcome_.error = std::numeric_limits<double>::infinity();
  }

  void log_rows() {
    for_rows([&](int64_t i) {
      f_[i] = std::log(a_[i]) - GEOWIDTH_DISPATCH(sinkhorn_row_log_sum, kernel_.x + i * m_, m_, kernel_.scale,
                                                  kernel_.r[i], kernel_.s, g_);
    });
  }

  void log_columns() {
    std::vector<T> top(slabs * m_, std::numeric_limits<T>::lowest() / 4), sum(slabs * m_, 0);
    for_slabs([&](int64_t s, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        GEOWIDTH_DISPATCH(sinkhorn_add_row, kernel_.x + i * m_, m_, kernel_.scale, kernel_.r[i], kernel_.s, f_[i],
                          &top[s * m_], &sum[s * m_]);
    });
    for (int64_t j = 0; j < m_; ++j) {
      double highest = top[j], whole = 0;
      for (int64_t s = 1; s < slabs; ++s) highest = std::max(highest, static_cast<double>(top[s * m_ + j]));
      for (int64_t s = 0; s < slabs; ++s) whole += sum[s * m_ + j] * std::exp(top[s * m_ + j] - highest);
      g_[j] = static_cast<T>(std::log(static_cast<double>(b_[j])) - highest - std::log(whole));
    }
  }

  void enter_by_log_domain() {
    for (int64_t j = 0; j < m_; ++j)
      if (!std::isfinite(g_[j])) g_[j] = 0;
    log_rows();
    log_columns();
    log_rows();
    ++outcome_.log_entries;
    form_kernel();
  }

  // One visit: u = a / (K v), column = K' u. False if anything left the range of numbers.
  bool visit() {
    for (int64_t j = 0; j < m_; ++j) v_[j] = static_cast<T>(std::exp(x_[j]));
    for_slabs([&](int64_t s, int64_t begin, int64_t end) {
      GEOWIDTH_DISPATCH(sinkhorn_pass, k_ + begin * m_, end - begin, m_, a_ + begin, v_, u_ + begin, &partial_[s * m_]);
    });
    const int64_t used = (n_ + slab_ - 1) / slab_;
    double error = 0, least = std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < m_; ++j) {
      double sum = 0;
      for (int64_t s = 0; s < used; ++s) sum += partial_[s * m_ + j];
      column_[j] = sum;
      error += std::abs(v_[j] * sum - b_[j]);
      least = std::min(least, sum);
    }
    ++outcome_.passes;
    outcome_.error = error;
    return std::isfinite(error) && least > 0;
  }

  bool usable() const {
    const T small = std::numeric_limits<T>::min() * 1e8f, large = std::numeric_limits<T>::max() * 1e-8f;
    for (int64_t i = 0; i < n_; ++i)
      if (!(u_[i] > small && u_[i] < large)) return false;
    return true;
  }

  // Iterations on one kernel, until done or until v leaves the safe range. True if the state is usable.
  bool iterate() {
    Anderson mixing(m_, settings_.memory);
    double previous = std::numeric_limits<double>::infinity();
    std::vector<double> best;
    double best_error = previous;
    int64_t best_pass = outcome_.passes;
    while (true) {
      if (!visit() || !usable()) {
        outcome_.error = std::numeric_limits<double>::infinity();
        break;
      }
      if (outcome_.error < best_error) {
        best_error = outcome_.error;
        best_pass = outcome_.passes;
        best = x_;
      }
      stalled_ = outcome_.passes - best_pass >= (best_error <= rounding ? patience : long_patience);
      if (finished()) break;
      bool outside = false;
      for (int64_t j = 0; j < m_; ++j) {
        y_[j] = std::log(b_[j] / column_[j]);
        outside = outside || std::abs(x_[j]) > range;
      }
      if (outside) break;
      if (outcome_.error > 3 * previous) mixing.forget();
      previous = outcome_.error;
      mixing.step(x_, y_);
    }
    if (best.empty()) return false;
    if (outcome_.error > best_error) {
      x_ = best;
      visit();
    }
    return true;
  }

  void absorb() {
    for (int64_t i = 0; i < n_; ++i) f_[i] += std::log(u_[i]);
    for (int64_t j = 0; j < m_; ++j) g_[j] += static_cast<T>(x_[j]);
  }

  const LogKernel<T>& kernel_;
  int64_t n_, m_;
  const T *a_, *b_;
  T *f_, *g_, *k_, *u_, *v_;
  const SinkhornSettings& settings_;
  int64_t slab_;
  std::vector<T> partial_;
  std::vector<double> column_, x_, y_;
  bool stalled_ = false;
  SinkhornOutcome outcome_;
};

}  // namespace

template <typename T>
SinkhornOutcome sinkhorn(const LogKernel<T>& kernel, const T* a, const T* b, T* f, T* g, T* k, T* u, T* v,
                         const SinkhornSettings& settings) {
  return Sinkhorn<T>(kernel, a, b, f, g, k, u, v, settings).run();
}

template <typename T>
PlanSums form_plan(const LogKernel<T>& kernel, const T* k, const T* u, const T* v, const T* old, T* plan, int threads) {
  const int64_t n = kernel.n, m = kernel.m;
  std::vector<double> rows(3 * n);
  parallel_for(n, 8, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      GEOWIDTH_DISPATCH(sinkhorn_plan_row, k + i * m, kernel.x + i * m, kernel.s, old + i * m, m, u[i], v, plan + i * m,
                        &rows[3 * i]);
  });
  PlanSums sums;
  for (int64_t i = 0; i < n; ++i) {
    sums.change += rows[3 * i];
    sums.inner += rows[3 * i + 1];
    sums.linear += kernel.r[i] * rows[3 * i + 2];
  }
  return sums;
}

template <typename T>
double inner_product(const T* x, const T* y, int64_t n, int64_t m, int threads) {
  std::vector<double> rows(n);
  parallel_for(n, 8, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rows[i] = GEOWIDTH_DISPATCH(sinkhorn_dot_row, x + i * m, y + i * m, m);
  });
  double sum = 0;
  for (double r : rows) sum += r;
  return sum;
}

template <typename T>
void marginals(const T* x, int64_t n, int64_t m, double* rows, double* columns, int threads) {
  const int64_t slab = (n + slabs - 1) / slabs;
  std::vector<double> partial(slabs * m);
  parallel_for(slabs, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * slab; i < std::min(n, end * slab); ++i)
      rows[i] = GEOWIDTH_DISPATCH(sinkhorn_sum_row, x + i * m, m, &partial[i / slab * m]);
  });
  for (int64_t j = 0; j < m; ++j) {
    columns[j] = 0;
    for (int64_t s = 0; s < slabs; ++s) columns[j] += partial[s * m + j];
  }
}

#define GEOWIDTH_INSTANTIATE(T)                                                                         \
  template SinkhornOutcome sinkhorn<T>(const LogKernel<T>&, const T*, const T*, T*, T*, T*, T*, T*,     \
                                       const SinkhornSettings&);                                        \
  template PlanSums form_plan<T>(const LogKernel<T>&, const T*, const T*, const T*, const T*, T*, int); \
  template double inner_product<T>(const T*, const T*, int64_t, int64_t, int);                          \
  template void marginals<T>(const T*, int64_t, int64_t, double*, double*, int);
GEOWIDTH_INSTANTIATE(float)
GEOWIDTH_INSTANTIATE(double)

}  // namespace geowidth
