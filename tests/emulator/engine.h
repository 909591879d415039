// The state of a launch: its blocks, their threads, and who may go on.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator.h"
#include "fiber.h"
#include "shared_memory.h"

namespace emulator {

enum class State { ready, at_barrier, in_collective, asleep, left };

struct Block;

struct Thread {
  Fiber fiber;
  uint3 index;
  unsigned number = 0;  // in its block
  Block* block = nullptr;
  State state = State::ready;
  // What it waits at, or waited at last.
  Kind kind = Kind::barrier;
  Site site = {"", 0, ""};
  unsigned mask = 0;
  int source = 0;
  uint64_t value = 0, result = 0;
};

// Bits of lanes. The lanes that wait name masks that are the same or have no lane in common.
struct Warp {
  unsigned waiting;  // in a warp operation
  unsigned absent;   // have left the kernel, or never were
};

struct Block {
  uint3 index;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  SharedMemory shared;
  unsigned waiting = 0, left = 0;  // threads at the barrier; threads that have left the kernel
  Thread* first_waiting = nullptr;
  std::vector<Thread*> ready;
  size_t listed = 0;          // place among the engine's ready blocks, from 1; 0 if no thread is ready
  bool newest_first = false;  // else any ready thread is as likely as another
};

class Engine {
 public:
  std::string run(const Launch& launch, const std::function<void()>& body);
  void set_seed(uint64_t seed) { random_state_ = seed; }

  // The thread that runs; null outside of kernels.
  Thread* current() { return current_; }

  // Called on the fiber that runs.
  [[noreturn]] void fault(const std::string& what);
  int barrier(Kind kind, bool predicate, Site site);
  uint64_t collective(Kind kind, unsigned mask, uint64_t value, int source, Site site);
  void sleep(Site site);
  void atomic();

  std::mutex launching;

 private:
  // engine.cpp: launches, switches, the order
  static void enter();
  void start(Block& block, uint3 index);
  void go_through();
  void resume(Thread& thread);
  void stop();
  void leave(Thread& thread);
  void clear();
  void make_ready(Thread& thread);
  void draw_order(Block& block, size_t first);
  void shuffle(std::vector<Thread*>& threads, size_t first);
  Thread& next();
  void unlist(Block& block);
  void wake();
  uint64_t random_bits();
  uint64_t random_below(uint64_t count);

  // waiting.cpp
  void check_barrier(const Thread& thread);
  void release(Block& block);
  void check_lanes(const Thread& thread, const Warp& warp);
  void check_agreement(const Thread& thread, const Thread& other);
  void settle(Block& block, unsigned number, unsigned mask);
  uint64_t answer(const Thread& thread, const Thread* lanes, unsigned present, uint64_t votes);
  std::string where_everyone_is() const;

  uint64_t random_state_ = 20260802;
  Fiber host_;
  Stacks stacks_;
  const std::function<void()>* body_ = nullptr;
  Thread* current_ = nullptr;
  Block* running_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  size_t started_ = 0;  // of blocks_, those of the launch that live
  size_t live_ = 0;     // threads that have not left
  std::vector<Block*> ready_blocks_;
  std::vector<Thread*> asleep_;
  // Barriers passed, warp operations done, threads that left, threads that sleep at another place than before.
  uint64_t progress_ = 0, progress_at_wake_ = 0, progress_at_yield_ = 0;
  uint64_t idle_wakes_ = 0, idle_yields_ = 0;
  std::string fault_;
};

// report.cpp
std::string words(uint3 index);
std::string words(const Thread& thread);
std::string waits(const Thread& thread);
const char* name(Kind kind);

}  // namespace emulator
