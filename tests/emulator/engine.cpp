#include "engine.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Device device;
Statistics statistics;

// ---- launches

std::string Engine::run(const Launch& launch, const std::function<void()>& body) {
  clear();
  body_ = &body;
  blockDim = launch.block;
  gridDim = launch.grid;
  const uint64_t count = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
  const size_t together = launch.cooperative ? count : 1;
  while (blocks_.size() < together) blocks_.emplace_back(new Block);
  for (size_t i = 0; i < together; ++i) {
    blocks_[i]->threads.resize(static_cast<size_t>(launch.block.x) * launch.block.y * launch.block.z);
    blocks_[i]->shared.resize(launch.shared_bytes);
  }
  // Blocks in the order start, start + step, ... modulo their number: every one once, as step and number are coprime.
  uint64_t at = random_bits() % count, step = 1 + random_bits() % count;
  while (std::gcd(step, count) != 1) ++step;
  for (uint64_t done = 0; done < count && fault_.empty(); ++done, at = (at + step) % count) {
    const uint64_t row = at / launch.grid.x;
    start(*blocks_[started_++], {static_cast<unsigned>(at % launch.grid.x), static_cast<unsigned>(row % launch.grid.y),
                                 static_cast<unsigned>(row / launch.grid.y)});
    if (started_ == together) go_through();
  }
  return fault_.empty() ? "" : "kernel(" + launch.kernel + "): " + fault_;
}

void Engine::start(Block& block, uint3 index) {
  ++statistics.blocks;
  statistics.threads += block.threads.size();
  block.index = index;
  block.waiting = block.left = 0;
  block.first_waiting = nullptr;
  block.shared.poison();
  block.warps.assign((block.threads.size() + warp_lanes - 1) / warp_lanes, {0, 0});
  if (const size_t rest = block.threads.size() % warp_lanes) block.warps.back().absent = ~0u << rest;
  uint3 at = {0, 0, 0};
  for (Thread& thread : block.threads) {
    thread.index = at;
    thread.number = static_cast<unsigned>(&thread - block.threads.data());
    thread.block = &block;
    make_ready(thread);
    if (++at.x < blockDim.x) continue;
    at.x = 0;
    if (++at.y < blockDim.y) continue;
    at.y = 0;
    ++at.z;
  }
  live_ += block.threads.size();
  draw_order(block, 0);
}

// Until every thread of the started blocks has left the kernel, or something went wrong.
void Engine::go_through() {
  while (live_ && fault_.empty()) {
    if (ready_blocks_.empty()) wake();
    if (fault_.empty()) resume(next());
  }
  for (size_t i = 0; i < started_ && fault_.empty(); ++i)
    if (!blocks_[i]->shared.intact())
      fault_ = "block " + words(blocks_[i]->index) + " wrote outside its dynamic shared memory of " +
               std::to_string(blocks_[i]->shared.size()) + " bytes";
  if (fault_.empty()) started_ = 0;
}

// Forgets what a launch that was given up has left behind.
void Engine::clear() {
  for (auto& block : blocks_) {
    block->ready.clear();
    block->listed = 0;
    for (Thread& thread : block->threads) {
      if (thread.fiber.stack) stacks_.give_back(thread.fiber.stack);
      thread.fiber.stack = nullptr;
    }
  }
  fault_.clear();
  ready_blocks_.clear();
  asleep_.clear();
  running_ = nullptr;
  started_ = live_ = 0;
  idle_wakes_ = idle_yields_ = 0;
}

// ---- switches

void Engine::resume(Thread& thread) {
  ++statistics.switches;
  if (!thread.fiber.stack) {
    thread.fiber.stack = stacks_.take();
    prepare(thread.fiber, &Engine::enter);
  }
  current_ = &thread;
  threadIdx = thread.index;
  blockIdx = thread.block->index;
  switch_fiber(host_, thread.fiber);
  current_ = nullptr;
  if (thread.state != State::left) return;
  if (!Stacks::intact(thread.fiber.stack) && fault_.empty())
    fault_ = words(thread) + " used more stack than the " + std::to_string(Stacks::size) + " bytes it has";
  stacks_.give_back(thread.fiber.stack);
  thread.fiber.stack = nullptr;
}

Engine& engine() {
  static Engine the_engine;
  return the_engine;
}

void Engine::enter() {
  Engine& self = engine();
  arrived_first(self.host_);
  (*self.body_)();
  self.leave(*self.current_);
  switch_fiber(self.current_->fiber, self.host_, true);
}

void Engine::stop() { switch_fiber(current_->fiber, host_); }

void Engine::fault(const std::string& what) {
  fault_ = words(*current_) + ": " + what;
  stop();
  abort();  // a launch that was given up is never gone on with
}

void Engine::leave(Thread& thread) {
  Block& block = *thread.block;
  if (block.waiting)
    fault("leaves the kernel while thread " + words(block.first_waiting->index) + " waits for " +
          waits(*block.first_waiting) + ": the barrier is divergent");
  thread.state = State::left;
  ++block.left;
  --live_;
  ++progress_;
  Warp& warp = block.warps[thread.number / warp_lanes];
  const unsigned lane = 1u << thread.number % warp_lanes;
  warp.absent |= lane;
  for (unsigned rest = warp.waiting; rest; rest &= rest - 1) {
    const Thread& other = (&thread - thread.number % warp_lanes)[__builtin_ctz(rest)];
    if (!(other.mask & lane)) continue;
    settle(block, thread.number / warp_lanes, other.mask);
    return;
  }
}

// ---- the order

uint64_t Engine::random_bits() {  // splitmix64
  uint64_t z = (random_state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Under `count`, which is under 2^32.
uint64_t Engine::random_below(uint64_t count) { return (random_bits() >> 32) * count >> 32; }

void Engine::shuffle(std::vector<Thread*>& threads, size_t first) {
  for (size_t i = threads.size(); i > first + 1; --i)
    std::swap(threads[i - 1], threads[first + random_below(i - first)]);
}

// A new order for the block's ready threads from `first` on, and whether the newest go first until the next barrier:
// then a warp runs ahead of the others as far as it can.
void Engine::draw_order(Block& block, size_t first) {
  shuffle(block.ready, first);
  block.newest_first = random_bits() & 1;
}

void Engine::make_ready(Thread& thread) {
  Block& block = *thread.block;
  thread.state = State::ready;
  block.ready.push_back(&thread);
  if (block.listed) return;
  ready_blocks_.push_back(&block);
  block.listed = ready_blocks_.size();
}

void Engine::unlist(Block& block) {
  Block* last = ready_blocks_.back();
  last->listed = block.listed;
  ready_blocks_[block.listed - 1] = last;
  ready_blocks_.pop_back();
  block.listed = 0;
}

// Mostly of the block that ran last, so that its stacks stay in the cache.
Thread& Engine::next() {
  if (!running_ || !running_->listed || (ready_blocks_.size() > 1 && !(random_bits() & 255)))
    running_ = ready_blocks_[random_below(ready_blocks_.size())];
  std::vector<Thread*>& ready = running_->ready;
  if (!running_->newest_first) std::swap(ready[random_below(ready.size())], ready.back());
  Thread& thread = *ready.back();
  ready.pop_back();
  if (ready.empty()) unlist(*running_);
  return thread;
}

// No thread is ready: wakes those that sleep, unless this has led nowhere for long.
void Engine::wake() {
  constexpr uint64_t most_idle_wakes = 1000;
  idle_wakes_ = progress_ == progress_at_wake_ ? idle_wakes_ + 1 : 0;
  progress_at_wake_ = progress_;
  if (asleep_.empty())
    fault_ = "deadlock: no thread can go on." + where_everyone_is();
  else if (idle_wakes_ > most_idle_wakes)
    fault_ = "deadlock: threads wake only to sleep again." + where_everyone_is();
  for (Thread* thread : asleep_) make_ready(*thread);
  asleep_.clear();
  for (Block* block : ready_blocks_) draw_order(*block, 0);
}

// ---- what the headers call

std::string run(const Launch& launch, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(engine().launching);
  ++statistics.launches;
  statistics.cooperative_launches += launch.cooperative;
  if (launch.shared_bytes > statistics.shared_bytes) statistics.shared_bytes = launch.shared_bytes;
  return engine().run(launch, body);
}

void set_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(engine().launching);
  engine().set_seed(seed);
}

void fault(const std::string& what) {
  if (engine().current()) engine().fault(what);
  fprintf(stderr, "emulator, outside of a kernel: %s\n", what.c_str());
  abort();
}

namespace {

Engine& running(const char* called) {
  if (!engine().current()) fault(std::string(called) + " was called by host code");
  return engine();
}

}  // namespace

unsigned char* dynamic_shared() { return running("dynamic_shared").current()->block->shared.bytes(); }

int barrier(Kind kind, bool predicate, Site site) { return running(name(kind)).barrier(kind, predicate, site); }

uint64_t collective(Kind kind, unsigned mask, uint64_t value, int source, Site site) {
  return running(name(kind)).collective(kind, mask, value, source, site);
}

void sleep(Site site) { running("__nanosleep").sleep(site); }

void atomic() { running("an atomic operation").atomic(); }

int lane() { return static_cast<int>(running("a warp operation").current()->number % warp_lanes); }

}  // namespace emulator
