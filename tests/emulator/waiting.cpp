// What threads wait for: barriers, warp operations, other threads' writes.
#include <cstring>

#include "engine.h"

namespace emulator {

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
  if (progress_ != progress_at_yield_) idle_yields_ = 0;
  progress_at_yield_ = progress_;
  if (++idle_yields_ > most_idle_yields) fault("livelock: nothing but atomic operations." + where_everyone_is());
  std::vector<Thread*>& ready = current_->block->ready;
  make_ready(*current_);
  std::swap(ready.back(), ready[random_below(ready.size())]);
  stop();
}

// ---- barriers of a block

int Engine::barrier(Kind kind, bool predicate, Site site) {
  Thread& thread = *current_;
  Block& block = *thread.block;
  thread.kind = kind;
  thread.site = site;
  thread.value = predicate;
  thread.state = State::at_barrier;
  check_barrier(thread);
  if (!block.waiting++) block.first_waiting = &thread;
  if (block.waiting == block.threads.size()) release(block);
  stop();
  return static_cast<int>(thread.result);
}

void Engine::check_barrier(const Thread& thread) {
  const Block& block = *thread.block;
  if (block.left)
    fault("reaches " + waits(thread) + " though " + std::to_string(block.left) +
          " threads of its block have left the kernel: the barrier is divergent");
  if (!block.waiting) return;
  const Thread& other = *block.first_waiting;
  if (other.kind != thread.kind || other.site.line != thread.site.line || strcmp(other.site.file, thread.site.file))
    fault("reaches " + waits(thread) + " while thread " + words(other.index) + " waits for " + waits(other) +
          ": the barrier is divergent");
}

void Engine::release(Block& block) {
  ++statistics.barriers;
  ++progress_;
  uint64_t votes = 0;
  for (const Thread& thread : block.threads) votes += thread.value;
  const size_t first = block.ready.size();
  for (Thread& thread : block.threads) {
    thread.result = votes;
    make_ready(thread);
  }
  draw_order(block, first);
  block.waiting = 0;
  block.first_waiting = nullptr;
}

// ---- operations of a warp

uint64_t Engine::collective(Kind kind, unsigned mask, uint64_t value, int source, Site site) {
  Thread& thread = *current_;
  thread.kind = kind;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.site = site;
  thread.state = State::in_collective;
  Warp& warp = thread.block->warps[thread.number / warp_lanes];
  check_lanes(thread, warp);
  warp.waiting |= 1u << thread.number % warp_lanes;
  settle(*thread.block, thread.number / warp_lanes, mask);
  stop();
  return thread.result;
}

void Engine::check_lanes(const Thread& thread, const Warp& warp) {
  if (!(thread.mask >> thread.number % warp_lanes & 1)) fault("is not itself among the lanes of its " + waits(thread));
  const Thread* lanes = &thread - thread.number % warp_lanes;
  if (const unsigned inside = warp.waiting & thread.mask) check_agreement(thread, lanes[__builtin_ctz(inside)]);
  for (unsigned outside = warp.waiting & ~thread.mask; outside; outside &= outside - 1)
    if (lanes[__builtin_ctz(outside)].mask & thread.mask) check_agreement(thread, lanes[__builtin_ctz(outside)]);
}

void Engine::check_agreement(const Thread& thread, const Thread& other) {
  if (other.mask != thread.mask || other.kind != thread.kind)
    fault("reaches " + waits(thread) + " while thread " + words(other.index) + " waits for " + waits(other) +
          ": lanes of one warp disagree");
}

// If all lanes of the mask have arrived or are absent, those that wait get their answers and are ready.
void Engine::settle(Block& block, unsigned number, unsigned mask) {
  Warp& warp = block.warps[number];
  if (mask & ~(warp.waiting | warp.absent)) return;
  ++statistics.collectives;
  ++progress_;
  Thread* lanes = &block.threads[number * warp_lanes];
  const unsigned present = mask & ~warp.absent;
  uint64_t votes = 0;
  for (unsigned rest = present; rest; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    votes |= static_cast<uint64_t>(lanes[i].value != 0) << i;
  }
  const size_t first_new = block.ready.size();
  for (unsigned rest = present; rest; rest &= rest - 1) {
    Thread& thread = lanes[__builtin_ctz(rest)];
    thread.result = answer(thread, lanes, present, votes);
  }
  for (unsigned rest = present; rest; rest &= rest - 1) make_ready(lanes[__builtin_ctz(rest)]);
  shuffle(block.ready, first_new);
  warp.waiting &= ~mask;
}

uint64_t Engine::answer(const Thread& thread, const Thread* lanes, unsigned present, uint64_t votes) {
  if (thread.source < 0) return votes;
  if (!(present >> thread.source & 1))
    fault("lane " + std::to_string(&thread - lanes) + " reads lane " + std::to_string(thread.source) +
          ", which takes no part, by " + waits(thread));
  return lanes[thread.source].value;
}

}  // namespace emulator
