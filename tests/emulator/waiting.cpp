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
  check_lanes(thread);
  settle(thread);
  stop();
  return thread.result;
}

void Engine::check_lanes(const Thread& thread) {
  const unsigned first = thread.number / warp_lanes * warp_lanes;
  if (!(thread.mask >> (thread.number - first) & 1)) fault("is not itself among the lanes of its " + waits(thread));
  for (unsigned i = first; i < first + warp_lanes && i < thread.block->threads.size(); ++i) {
    const Thread& other = thread.block->threads[i];
    if (other.state != State::in_collective || !(other.mask & thread.mask)) continue;
    if (other.mask != thread.mask || other.kind != thread.kind)
      fault("reaches " + waits(thread) + " while thread " + words(other.index) + " waits for " + waits(other) +
            ": lanes of one warp disagree");
  }
}

// If all lanes that the thread's mask names have arrived or left, those that wait get their answers and are ready.
bool Engine::settle(const Thread& thread) {
  Block& block = *thread.block;
  const unsigned first = thread.number / warp_lanes * warp_lanes, mask = thread.mask;
  Thread* warp = &block.threads[first];
  const size_t rest = block.threads.size() - first;
  const int lanes = rest < warp_lanes ? static_cast<int>(rest) : warp_lanes;
  const auto takes_part = [&](int i) { return (mask >> i & 1) && warp[i].state != State::left; };
  uint64_t votes = 0;
  for (int i = 0; i < lanes; ++i) {
    if (!takes_part(i)) continue;
    if (warp[i].state != State::in_collective || warp[i].mask != mask) return false;
    votes |= static_cast<uint64_t>(warp[i].value != 0) << i;
  }
  ++statistics.collectives;
  ++progress_;
  for (int i = 0; i < lanes; ++i)
    if (takes_part(i)) warp[i].result = answer(warp[i], warp, lanes, votes);
  const size_t first_new = block.ready.size();
  for (int i = 0; i < lanes; ++i)
    if (takes_part(i)) make_ready(warp[i]);
  shuffle(block.ready, first_new);
  return true;
}

uint64_t Engine::answer(const Thread& thread, const Thread* warp, int lanes, uint64_t votes) {
  const int source = thread.source;
  if (source < 0) return votes;
  if (source >= lanes || !(thread.mask >> source & 1) || warp[source].state == State::left)
    fault("lane " + std::to_string(&thread - warp) + " reads lane " + std::to_string(source) +
          ", which takes no part, by " + waits(thread));
  return warp[source].value;
}

}  // namespace emulator
