#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#ifdef EMULATOR_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t stacks_in_chunk = 64, canary_bytes = 64;
constexpr unsigned char canary = 0xa5;

#ifdef EMULATOR_ADDRESS_SANITIZER
void announce(Fiber& from, const Fiber& to, bool ended) {
  __sanitizer_start_switch_fiber(ended ? nullptr : &from.fake_stack, to.bottom, to.size);
}
void arrived(Fiber& fiber) { __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr); }
#else
void announce(Fiber&, const Fiber&, bool) {}
void arrived(Fiber&) {}
#endif

}  // namespace

#ifdef EMULATOR_ADDRESS_SANITIZER
const size_t Stacks::size = 256 * 1024;
#else
const size_t Stacks::size = 64 * 1024;
#endif

// void emulator_switch(void** from, void* to): keeps the registers a call must keep on the stack, and changes stacks.
#if defined(EMULATOR_UCONTEXT)
#elif defined(__x86_64__)
__asm__(R"(
  .text
  .p2align 4
  .local emulator_switch
  .type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulator_switch, .-emulator_switch
)");
#elif defined(__aarch64__)
__asm__(R"(
  .text
  .p2align 4
  .local emulator_switch
  .type emulator_switch, %function
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size emulator_switch, .-emulator_switch
)");
#endif

#ifndef EMULATOR_UCONTEXT
extern "C" void emulator_switch(void** from, void* to);

void prepare(Fiber& fiber, void (*entry)()) {
  // Stacks begin at multiples of a page: their tops are moved apart, or all would compete for the same cache lines.
  const size_t colour = reinterpret_cast<uintptr_t>(fiber.stack) / Stacks::size % 61 * 64;
  auto* top = reinterpret_cast<uintptr_t*>(fiber.stack + Stacks::size - colour);
#if defined(__x86_64__)
  *--top = 0;  // where entry would return to
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
#else
  top -= 20;
  memset(top, 0, 160);
  top[11] = reinterpret_cast<uintptr_t>(entry);  // x30, the address `ret` goes to
#endif
  fiber.pointer = top;
  fiber.bottom = fiber.stack;
  fiber.size = Stacks::size;
}

void switch_fiber(Fiber& from, Fiber& to, bool ended) {
  announce(from, to, ended);
  emulator_switch(&from.pointer, to.pointer);
  arrived(from);
}
#else
void prepare(Fiber& fiber, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = Stacks::size;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
  fiber.bottom = fiber.stack;
  fiber.size = Stacks::size;
}

void switch_fiber(Fiber& from, Fiber& to, bool ended) {
  announce(from, to, ended);
  swapcontext(&from.context, &to.context);
  arrived(from);
}
#endif

void arrived_first(Fiber& from) {
#ifdef EMULATOR_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.size);
#else
  (void)from;
#endif
}

Stacks::~Stacks() {
  for (unsigned char* chunk : chunks_) munmap(chunk, size * stacks_in_chunk);
}

unsigned char* Stacks::take() {
  if (free_.empty()) {
    void* chunk = mmap(nullptr, size * stacks_in_chunk, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk == MAP_FAILED) throw std::bad_alloc();
    chunks_.push_back(static_cast<unsigned char*>(chunk));
    for (size_t i = stacks_in_chunk; i-- > 0;) {
      free_.push_back(chunks_.back() + i * size);
      memset(free_.back(), canary, canary_bytes);
    }
  }
  unsigned char* stack = free_.back();
  free_.pop_back();
  return stack;
}

void Stacks::give_back(unsigned char* stack) {
#ifdef EMULATOR_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack, size);  // frames that were never left
#endif
  memset(stack, canary, canary_bytes);
  free_.push_back(stack);
}

bool Stacks::intact(const unsigned char* stack) {
  for (size_t i = 0; i < canary_bytes; ++i)
    if (stack[i] != canary) return false;
  return true;
}

}  // namespace emulator
