// Stacks and switches between them. On x86-64 and aarch64 a switch is a dozen instructions of our own, elsewhere
// ucontext's. AddressSanitizer is told of every switch.
#pragma once

#include <cstddef>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ADDRESS_SANITIZER 1
#endif
#endif

#if !defined(__ELF__) || !(defined(__x86_64__) || defined(__aarch64__))
#define EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulator {

// A stack on which something can be stopped and gone on with.
struct Fiber {
  void* pointer = nullptr;         // stack pointer while stopped
  unsigned char* stack = nullptr;  // lowest byte; null for the thread's own stack
  void* fake_stack = nullptr;      // AddressSanitizer's
  const void* bottom = nullptr;    // as AddressSanitizer sees it
  size_t size = 0;
#ifdef EMULATOR_UCONTEXT
  ucontext_t context;
#endif
};

// Makes `fiber`, whose stack is set, start in `entry`, which must never return.
void prepare(Fiber& fiber, void (*entry)());

// Stops `from`, the one running, and goes on with `to`; returns when something switches back to `from`, never if it
// has ended.
void switch_fiber(Fiber& from, Fiber& to, bool ended = false);

// To be called first in an entry function: ends the switch that started it. `from` is where it came from.
void arrived_first(Fiber& from);

// Stacks of one size, kept for the next fiber when given back.
class Stacks {
 public:
  static const size_t size;
  ~Stacks();
  unsigned char* take();
  void give_back(unsigned char* stack);
  // Whether the lowest bytes of a stack are still as they were: false after an overflow.
  static bool intact(const unsigned char* stack);

 private:
  std::vector<unsigned char*> free_, chunks_;
};

}  // namespace emulator
