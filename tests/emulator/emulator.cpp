#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "fiber.h"
#include "shared_memory.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Device device;
Statistics statistics;

namespace {

enum class State { ready, at_barrier, in_collective, asleep, left };

struct Block;

struct Thread {
  Fiber fiber;
  uint3 index;
  unsigned number = 0;  // in its block
  Block* block = nullptr;
  State state = State::ready;
  Kind kind = Kind::barrier;
  Site site = {"", 0, ""};
  unsigned mask = 0;
  uint64_t value = 0, result = 0;
  int source = 0;
};

struct Block {
  uint3 index;
  std::vector<Thread> threads;
  SharedMemory shared;
  unsigned waiting = 0, left = 0;
  Thread* first_waiting = nullptr;
};

const char* name(Kind kind) {
  switch (kind) {
    case Kind::barrier: return "__syncthreads";
    case Kind::barrier_or: return "__syncthreads_or";
    case Kind::barrier_and: return "__syncthreads_and";
    case Kind::barrier_count: return "__syncthreads_count";
    case Kind::sync_warp: return "__syncwarp";
    case Kind::ballot: return "__ballot_sync";
    case Kind::any: return "__any_sync";
    case Kind::all: return "__all_sync";
    default: return "__shfl_sync";
  }
}

std::string words(uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

std::string words(Site site) {
  return std::string(site.file) + ":" + std::to_string(site.line) + " in " + site.function;
}

std::string words(const Thread& thread) { return "thread " + words(thread.index) + " of block " + words(thread.block->index); }

std::string hexadecimal(unsigned value) {
  char text[16];
  snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

std::string waits(const Thread& thread) {
  switch (thread.state) {
    case State::at_barrier: return std::string(name(thread.kind)) + " at " + words(thread.site);
    case State::in_collective:
      return std::string(name(thread.kind)) + " of lanes " + hexadecimal(thread.mask) + " at " + words(thread.site);
    case State::asleep: return "__nanosleep at " + words(thread.site);
    case State::left: return "the end of the kernel";
    default: return "nothing";
  }
}

uint64_t random_state = 20260802;

uint64_t random_bits() {  // splitmix64
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Below `count`, which is under 2^32.
uint64_t random_below(uint64_t count) { return (random_bits() >> 32) * count >> 32; }

class Engine {
 public:
  std::string run(const Launch& launch, const std::function<void()>& body);
  [[noreturn]] void fault(const std::string& what);
  bool on_fiber() const { return current_ != nullptr; }
  Thread& current() { return *current_; }
  int barrier(Kind kind, bool predicate, Site site);
  uint64_t collective(Kind kind, unsigned mask, uint64_t value, int source, Site site);
  void sleep(Site site);
  void atomic();
  std::mutex launching;

 private:
  static void enter();
  void start_block(Block& block, uint3 index);
  void go_through();
  void resume(Thread& thread);
  void stop();
  void leave(Thread& thread);
  void make_ready(Thread& thread);
  Thread& next();
  void wake();
  void refuse_idle_yields();
  bool settle(Thread& thread);
  void check_lanes(const Thread& thread);
  uint64_t answer(const Thread& thread, const Thread* warp, int lanes, uint64_t votes);
  void draw_order(size_t first_new);
  std::string where_everyone_is() const;
  void clear();

  Fiber host_;
  Stacks stacks_;
  const std::function<void()>* body_ = nullptr;
  Thread* current_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  size_t live_blocks_ = 0;
  std::vector<Thread*> ready_, asleep_;
  size_t live_ = 0;
  uint64_t progress_ = 0, progress_at_wake_ = 0, progress_at_yield_ = 0, yields_ = 0;
  unsigned idle_rounds_ = 0;
  bool newest_first_ = false;
  std::string fault_;
};

Engine& engine() {
  static Engine the_engine;
  return the_engine;
}

// ---- launches

std::string Engine::run(const Launch& launch, const std::function<void()>& body) {
  body_ = &body;
  fault_.clear();
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
  uint64_t at = count > 1 ? random_bits() % count : 0, step = 1 + (count > 1 ? random_bits() % count : 0);
  while (std::gcd(step, count) != 1) ++step;
  for (uint64_t done = 0; done < count && fault_.empty(); ++done, at = (at + step) % count) {
    const uint3 index = {static_cast<unsigned>(at % launch.grid.x),
                         static_cast<unsigned>(at / launch.grid.x % launch.grid.y),
                         static_cast<unsigned>(at / launch.grid.x / launch.grid.y)};
    start_block(*blocks_[live_blocks_++], index);
    if (live_blocks_ == together) {
      go_through();
      clear();
    }
  }
  body_ = nullptr;
  if (!fault_.empty()) fault_ = "kernel(" + launch.kernel + "): " + fault_;
  return fault_;
}

void Engine::start_block(Block& block, uint3 index) {
  ++statistics.blocks;
  statistics.threads += block.threads.size();
  block.index = index;
  block.waiting = block.left = 0;
  block.first_waiting = nullptr;
  block.shared.poison();
  for (unsigned i = 0; i < block.threads.size(); ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    thread.number = i;
    thread.block = &block;
    thread.state = State::ready;
    ready_.push_back(&thread);
  }
  live_ += block.threads.size();
}

// Until every thread of the live blocks has left the kernel, or something went wrong.
void Engine::go_through() {
  progress_ = progress_at_wake_ = progress_at_yield_ = yields_ = idle_rounds_ = 0;
  draw_order(0);
  while (live_ && fault_.empty()) {
    if (ready_.empty() && !asleep_.empty()) wake();
    if (!fault_.empty()) break;
    if (ready_.empty()) {
      fault_ = "deadlock: no thread can go on. " + where_everyone_is();
      break;
    }
    resume(next());
  }
  for (size_t i = 0; i < live_blocks_ && fault_.empty(); ++i)
    if (!blocks_[i]->shared.intact())
      fault_ = "block " + words(blocks_[i]->index) + " wrote outside its dynamic shared memory of " +
               std::to_string(blocks_[i]->shared.size()) + " bytes";
}

void Engine::clear() {
  for (size_t i = 0; i < live_blocks_; ++i)
    for (Thread& thread : blocks_[i]->threads)
      if (thread.fiber.stack) {
        stacks_.give_back(thread.fiber.stack);
        thread.fiber.stack = nullptr;
      }
  live_blocks_ = live_ = 0;
  ready_.clear();
  asleep_.clear();
}

// ---- switching

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
  if (!Stacks::intact(thread.fiber.stack))
    fault_ = words(thread) + " used more stack than the " + std::to_string(Stacks::size) + " bytes it has";
  if (thread.state == State::left) {
    stacks_.give_back(thread.fiber.stack);
    thread.fiber.stack = nullptr;
  }
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
    fault("left the kernel while thread " + words(block.first_waiting->index) + " waits at " +
          waits(*block.first_waiting) + ": the barrier is divergent");
  thread.state = State::left;
  ++block.left;
  --live_;
  ++progress_;
  const unsigned first = thread.number / warp_lanes * warp_lanes;
  for (unsigned i = first; i < first + warp_lanes && i < block.threads.size(); ++i)
    if (block.threads[i].state == State::in_collective && (block.threads[i].mask >> (thread.number - first) & 1))
      settle(block.threads[i]);
}

// ---- the order

// The threads made ready since `first_new` in a new order, and whether the newest of all go first from now on: then a
// warp runs ahead of the others as far as it can.
void Engine::draw_order(size_t first_new) {
  for (size_t i = ready_.size(); i > first_new + 1; --i)
    std::swap(ready_[i - 1], ready_[first_new + random_below(i - first_new)]);
  newest_first_ = random_bits() & 1;
}

void Engine::make_ready(Thread& thread) {
  thread.state = State::ready;
  ready_.push_back(&thread);
}

Thread& Engine::next() {
  if (!newest_first_) std::swap(ready_[random_below(ready_.size())], ready_.back());
  Thread& thread = *ready_.back();
  ready_.pop_back();
  return thread;
}

// All threads that can go on at all are asleep: wakes them, unless this has led nowhere for long.
void Engine::wake() {
  constexpr unsigned most_idle_rounds = 1000;
  idle_rounds_ = progress_ == progress_at_wake_ ? idle_rounds_ + 1 : 0;
  progress_at_wake_ = progress_;
  if (idle_rounds_ > most_idle_rounds) {
    fault_ = "deadlock: threads wake only to sleep again. " + where_everyone_is();
    return;
  }
  for (Thread* thread : asleep_) make_ready(*thread);
  asleep_.clear();
  draw_order(0);
}

void Engine::sleep(Site site) {
  Thread& thread = *current_;
  if (thread.site.line != site.line || thread.site.file != site.file) ++progress_;
  thread.site = site;
  thread.state = State::asleep;
  asleep_.push_back(&thread);
  stop();
}

void Engine::atomic() {
  constexpr uint64_t most_idle_yields = 20000000;
  ++statistics.atomics;
  if (random_bits() & 7) return;
  if (progress_ != progress_at_yield_) yields_ = 0;
  progress_at_yield_ = progress_;
  if (++yields_ > most_idle_yields) fault("livelock: only atomic operations for long. " + where_everyone_is());
  const size_t at = random_below(ready_.size() + 1);
  ready_.push_back(current_);
  std::swap(ready_.back(), ready_[at]);
  stop();
}

std::string Engine::where_everyone_is() const {
  constexpr size_t most_blocks = 3;
  std::string text;
  for (size_t b = 0; b < live_blocks_; ++b) {
    if (b == most_blocks) return text + "and " + std::to_string(live_blocks_ - b) + " more blocks";
    std::map<std::string, std::pair<unsigned, uint3>> groups;
    for (const Thread& thread : blocks_[b]->threads)
      if (++groups[waits(thread)].first == 1) groups[waits(thread)].second = thread.index;
    text += "Block " + words(blocks_[b]->index) + ": ";
    for (const auto& group : groups)
      text += std::to_string(group.second.first) + " thread(s), first " + words(group.second.second) +
              (group.first == "nothing" ? " may go on" : " wait(s) at " + group.first) + "; ";
  }
  return text;
}

// ---- barriers

int Engine::barrier(Kind kind, bool predicate, Site site) {
  Thread& thread = *current_;
  Block& block = *thread.block;
  thread.kind = kind;
  thread.site = site;
  thread.value = predicate;
  thread.state = State::at_barrier;
  if (block.left)
    fault("waits at " + waits(thread) + " though " + std::to_string(block.left) +
          " threads of its block have left the kernel: the barrier is divergent");
  if (!block.waiting++) block.first_waiting = &thread;
  const Thread& other = *block.first_waiting;
  if (other.kind != kind || other.site.line != site.line || strcmp(other.site.file, site.file) != 0)
    fault("waits at " + waits(thread) + " and thread " + words(other.index) + " at " + waits(other) +
          ": the barrier is divergent");
  if (block.waiting == block.threads.size()) {
    ++statistics.barriers;
    ++progress_;
    uint64_t votes = 0;
    for (const Thread& each : block.threads) votes += each.value;
    const size_t first = ready_.size();
    for (Thread& each : block.threads) {
      each.result = votes;
      make_ready(each);
    }
    draw_order(first);
    block.waiting = 0;
    block.first_waiting = nullptr;
  }
  stop();
  return static_cast<int>(thread.result);
}

// ---- warps

uint64_t Engine::collective(Kind kind, unsigned mask, uint64_t value, int source, Site site) {
  Thread& thread = *current_;
  thread.kind = kind;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.site = site;
  thread.state = State::in_collective;
  check_lanes(thread);
  if (settle(thread)) ++progress_;
  stop();
  return thread.result;
}

void Engine::check_lanes(const Thread& thread) {
  const unsigned first = thread.number / warp_lanes * warp_lanes;
  if (!(thread.mask >> (thread.number - first) & 1))
    fault("is not itself among the lanes of its " + waits(thread));
  for (unsigned i = first; i < first + warp_lanes && i < thread.block->threads.size(); ++i) {
    const Thread& other = thread.block->threads[i];
    if (other.state != State::in_collective || !(other.mask & thread.mask)) continue;
    if (other.mask != thread.mask || other.kind != thread.kind)
      fault("waits at " + waits(thread) + " and thread " + words(other.index) + " at " + waits(other) +
            ": lanes of one warp disagree");
  }
}

// If all lanes named by the thread's mask have arrived, those that live gets their answers and are ready.
bool Engine::settle(Thread& thread) {
  const unsigned first = thread.number / warp_lanes * warp_lanes, mask = thread.mask;
  Thread* warp = &thread.block->threads[first];
  const size_t rest = thread.block->threads.size() - first;
  const int lanes = rest < warp_lanes ? static_cast<int>(rest) : warp_lanes;
  uint64_t votes = 0;
  for (int i = 0; i < lanes; ++i) {
    if (!(mask >> i & 1) || warp[i].state == State::left) continue;
    if (warp[i].state != State::in_collective || warp[i].mask != mask) return false;
    votes |= static_cast<uint64_t>(warp[i].value != 0) << i;
  }
  ++statistics.collectives;
  const size_t first_new = ready_.size();
  for (int i = 0; i < lanes; ++i)
    if ((mask >> i & 1) && warp[i].state == State::in_collective) warp[i].result = answer(warp[i], warp, lanes, votes);
  for (int i = 0; i < lanes; ++i)
    if ((mask >> i & 1) && warp[i].state == State::in_collective) make_ready(warp[i]);
  for (size_t i = ready_.size(); i > first_new + 1; --i)
    std::swap(ready_[i - 1], ready_[first_new + random_below(i - first_new)]);
  return true;
}

uint64_t Engine::answer(const Thread& thread, const Thread* warp, int lanes, uint64_t votes) {
  if (thread.source < 0) return votes;
  const int source = thread.source;
  if (source >= lanes || !(thread.mask >> source & 1) || warp[source].state == State::left)
    fault("lane " + std::to_string(&thread - warp) + " reads lane " + std::to_string(source) +
          ", which takes no part, by " + waits(thread));
  return warp[source].value;
}

}  // namespace

std::string run(const Launch& launch, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(engine().launching);
  ++statistics.launches;
  statistics.cooperative_launches += launch.cooperative;
  if (launch.shared_bytes > statistics.shared_bytes) statistics.shared_bytes = launch.shared_bytes;
  return engine().run(launch, body);
}

void set_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(engine().launching);
  random_state = seed;
}

void fault(const std::string& what) {
  if (engine().on_fiber()) engine().fault(what);
  fprintf(stderr, "emulator, outside a kernel: %s\n", what.c_str());
  abort();
}

namespace {

Engine& running(const char* called) {
  if (!engine().on_fiber()) fault(std::string(called) + " was called by host code");
  return engine();
}

}  // namespace

unsigned char* dynamic_shared() { return running("dynamic_shared").current().block->shared.bytes(); }

int barrier(Kind kind, bool predicate, Site site) { return running(name(kind)).barrier(kind, predicate, site); }

uint64_t collective(Kind kind, unsigned mask, uint64_t value, int source, Site site) {
  return running(name(kind)).collective(kind, mask, value, source, site);
}

void sleep(Site site) { running("__nanosleep").sleep(site); }

void atomic() { running("an atomic operation").atomic(); }

int lane() { return static_cast<int>(running("a warp operation").current().number % warp_lanes); }

}  // namespace emulator
