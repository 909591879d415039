#include "cpu/ffn_activation.h"

#include <algorithm>

#include "cpu/thread_pool.h"

namespace geowidth {

void ffn_activation(const ActivationTask& task, bool backward, int threads) {
  if (task.columns == 0) return;
  // About 16 thousand elements a chunk: some ten microseconds of work, well above the cost of waking a thread.
  const int64_t grain = std::max<int64_t>(1, 16384 / task.columns);
  parallel_for(task.rows, grain, threads, [&](int64_t begin, int64_t end) {
    if (backward)
      GEOWIDTH_DISPATCH(activation_backward, task, begin, end);
    else
      GEOWIDTH_DISPATCH(activation_forward, task, begin, end);
  });
}

}  // namespace geowidth
