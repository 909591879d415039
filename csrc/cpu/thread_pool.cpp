#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <unistd.h>
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
    while (static_cast<int>(workers_.size()) < threads - 1) workers_.emplace_back([this] { serve(); });
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

// Leaked on purpose: worker threads wait in it until the process ends. A forked child has none of the parent's
// threads, so it starts a pool of its own.
Pool& pool() {
  static Pool* instance = new Pool;
#if !defined(_WIN32)
  static pid_t owner = getpid();
  if (owner != getpid()) {
    instance = new Pool;
    owner = getpid();
  }
#endif
  return *instance;
}

std::mutex& pool_in_use() {
  static std::mutex* mutex = new std::mutex;
#if !defined(_WIN32)
  static pid_t owner = getpid();
  if (owner != getpid()) {
    mutex = new std::mutex;
    owner = getpid();
  }
#endif
  return *mutex;
}

}  // namespace

void parallel_for(int64_t count, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  threads = static_cast<int>(std::min<int64_t>(std::max(1, threads), (count + grain - 1) / grain));
  if (threads == 1 || inside) return body(0, count);
  std::unique_lock<std::mutex> mine(pool_in_use(), std::try_to_lock);
  if (!mine.owns_lock()) return body(0, count);
  Job job;
  job.body = &body;
  job.count = count;
  job.chunk = std::max(grain, count / (threads * 8));
  pool().run(job, threads);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace geowidth
