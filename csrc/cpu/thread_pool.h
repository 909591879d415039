// One small pool of threads for all CPU kernels. A second OpenMP runtime beside torch's costs more than it gives.
#pragma once

#include <cstdint>
#include <functional>

namespace geowidth {

// Runs body(begin, end) over [0, count) in chunks of at least `grain`, on at most `threads` threads (the caller is one
// of them). Chunks are handed out one by one, so uneven work balances; which thread runs a chunk is not fixed, hence a
// body must write only what its own indices name. Nested calls, and calls made while another thread uses the pool, run
// inline. The first exception a body throws is rethrown here, after the other chunks have ended.
void parallel_for(int64_t count, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& body);

}  // namespace geowidth
