#include "cpu/anderson.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace geowidth {
namespace {

constexpr int64_t plain_steps = 2;        // before the first combination: early differences say little
constexpr double ridge = 1e-10;           // relative, against nearly parallel differences
constexpr double longest_correction = 8;  // of any coordinate: further than that the model is not to be trusted

// Solves the symmetric positive definite system in place; false if it is not.
bool cholesky_solve(std::vector<double>& matrix, std::vector<double>& right, int n) {
  for (int j = 0; j < n; ++j) {
    for (int i = j; i < n; ++i) {
      double sum = matrix[i * n + j];
      for (int k = 0; k < j; ++k) sum -= matrix[i * n + k] * matrix[j * n + k];
      if (i == j) {
        if (!(sum > 0)) return false;
        matrix[j * n + j] = std::sqrt(sum);
      } else {
        matrix[i * n + j] = sum / matrix[j * n + j];
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < i; ++k) right[i] -= matrix[i * n + k] * right[k];
    right[i] /= matrix[i * n + i];
  }
  for (int i = n - 1; i >= 0; --i) {
    for (int k = i + 1; k < n; ++k) right[i] -= matrix[k * n + i] * right[k];
    right[i] /= matrix[i * n + i];
  }
  return true;
}

double dot_of_differences(const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& c,
                          const std::vector<double>& d) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += (a[j] - b[j]) * (c[j] - d[j]);
  return sum;
}

}  // namespace

void Anderson::forget() {
  images_.clear();
  residuals_.clear();
}

bool Anderson::weights(std::vector<double>& weight) const {
  const int n = static_cast<int>(residuals_.size()) - 1;
  const std::vector<double>& last = residuals_.back();
  const std::vector<double> zero(size_, 0.0);
  std::vector<double> gram(n * n);
  weight.assign(n, 0.0);
  double largest = 0;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j)
      gram[i * n + j] = gram[j * n + i] = dot_of_differences(last, residuals_[i], last, residuals_[j]);
    largest = std::max(largest, gram[i * n + i]);
    weight[i] = dot_of_differences(last, residuals_[i], last, zero);
  }
  for (int i = 0; i < n; ++i) gram[i * n + i] += ridge * largest;
  return cholesky_solve(gram, weight, n);
}

void Anderson::step(std::vector<double>& x, const std::vector<double>& y) {
  ++steps_;
  if (memory_ == 0) {
    x = y;
    return;
  }
  std::vector<double> residual(size_);
  for (int64_t j = 0; j < size_; ++j) residual[j] = y[j] - x[j];
  images_.push_back(y);
  residuals_.push_back(std::move(residual));
  if (static_cast<int>(images_.size()) > memory_ + 1) {
    images_.erase(images_.begin());
    residuals_.erase(residuals_.begin());
  }
  std::vector<double> weight;
  x = y;
  if (steps_ <= plain_steps || images_.size() < 2 || !weights(weight)) return;
  for (size_t k = 0; k < weight.size(); ++k)
    for (int64_t j = 0; j < size_; ++j) x[j] -= weight[k] * (y[j] - images_[k][j]);
  double furthest = 0;
  for (int64_t j = 0; j < size_; ++j) furthest = std::max(furthest, std::abs(x[j] - y[j]));
  if (!(furthest <= longest_correction)) {
    x = y;
    forget();
  }
}

}  // namespace geowidth
