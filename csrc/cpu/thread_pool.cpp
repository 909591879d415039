#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace geowidth {
namespace {

thread_local bool inside = false;

struct Job {
  const std::function<void(int64_t, int64_t)>* body;
  int64_t count, chunk;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;

  void work() {
    inside = true;
    for (;;) {
      const int64_t begin = next.fetch_add(chunk);
      if (begin >= count) break;
      try {
        (*body)(begin, std::min(count, begin + chunk));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!failure) failure = std::current_exception();
        next.store(count);
      }
    }
    inside = false;
  }
};

class Pool {
 public:
  void run(Job& job, int threads) {
    std::unique_lock<std::mutex> lock(mutex_);
    start_workers(threads - 1);
    job_ = &job;
    wanted_ = threads - 1;
    ready_.notify_all();
    lock.unlock();
    job.work();
    lock.lock();
    wanted_ = 0;  // whoever has not started yet need not
    done_.wait(lock, [this] { return busy_ == 0; });
    job_ = nullptr;
  }

 private:
  // Where the system grants no more threads, those there are do the work.
  void start_workers(int count) {
    try {
      while (static_cast<int>(workers_.size()) < count) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ready_.wait(lock, [this] { return wanted_ > 0; });
      --wanted_;
      ++busy_;
      Job* job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_, done_;
  std::vector<std::thread> workers_;
  Job* job_ = nullptr;
  int wanted_ = 0, busy_ = 0;
};

// The pool and the lock that says who uses it.
struct Shared {
  Pool pool;
  std::mutex in_use;
};

// Leaked on purpose: worker threads wait in it until the process ends.
Shared* shared = nullptr;

// A forked child has none of the parent's threads, so it starts with a pool of its own, before it has a second thread.
Shared& the_shared() {
  static const bool ready = [] {
    shared = new Shared;
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { shared = new Shared; });
#endif
    return true;
  }();
  (void)ready;
  return *shared;
}

}  // namespace

void parallel_for(int64_t count, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), (count + grain - 1) / grain));
  if (threads == 1 || inside) return body(0, count);
  Shared& common = the_shared();
  std::unique_lock<std::mutex> mine(common.in_use, std::try_to_lock);
  if (!mine.owns_lock()) return body(0, count);
  Job job;
  job.body = &body;
  job.count = count;
  job.chunk = std::max(grain, count / (threads * 8));
  common.pool.run(job, threads);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace geowidth
