// The engine under the emulated CUDA headers: runs the threads of a launch as fibers and keeps what they wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// Of the fiber that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulator {

// Where in the sources a thread waits. As a default argument, `Site::here()` names the caller.
struct Site {
  const char* file;
  int line;
  const char* function;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                             const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

// What the emulated card has; an H200 at first.
struct Device {
  int multiprocessors = 132;
  int shared_bytes = 232448;  // most dynamic shared memory of a block, when asked for
  int capability_major = 9, capability_minor = 0;
};

struct Statistics {
  uint64_t launches, cooperative_launches, blocks, threads, barriers, collectives, atomics, switches;
  uint64_t shared_bytes;  // the largest of any launch
};

extern Device device;
extern Statistics statistics;

constexpr int warp_lanes = 32;
constexpr int shared_bytes_without_asking = 48 * 1024;

enum class Kind {
  barrier,
  barrier_or,
  barrier_and,
  barrier_count,
  sync_warp,
  ballot,
  any,
  all,
  shuffle_16,
  shuffle_32,
  shuffle_64,
};

struct Launch {
  std::string kernel;  // its parameter types, for messages
  dim3 grid, block;
  size_t shared_bytes;
  bool cooperative;
};

// Runs `body` once for every thread. Returns an empty string, or what went wrong: the launch was then given up.
std::string run(const Launch& launch, const std::function<void()>& body);

void set_seed(uint64_t seed);

// ---- called by device code, that is, on a fiber

// Gives the launch up. Outside a launch: ends the process.
[[noreturn]] void fault(const std::string& what);

unsigned char* dynamic_shared();

// Waits for all threads of the block; the number of those that gave a predicate.
int barrier(Kind kind, bool predicate, Site site);

// Waits for all lanes of `mask`. Shuffles: the value of lane `source`. Others: the lanes whose value is not 0.
uint64_t collective(Kind kind, unsigned mask, uint64_t value, int source, Site site);

// Lets every other thread go on first.
void sleep(Site site);

// Before an atomic operation: now and then, lets others go first.
void atomic();

int lane();

}  // namespace emulator
