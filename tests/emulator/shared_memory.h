// A block's dynamic shared memory: new bytes are 0xff (NaN as a number of any floating type), between guard zones.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "fiber.h"

#ifdef EMULATOR_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#define EMULATOR_POISON(address, bytes) __asan_poison_memory_region(address, bytes)
#define EMULATOR_UNPOISON(address, bytes) __asan_unpoison_memory_region(address, bytes)
#else
#define EMULATOR_POISON(address, bytes) static_cast<void>(0)
#define EMULATOR_UNPOISON(address, bytes) static_cast<void>(0)
#endif

namespace emulator {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory() { EMULATOR_UNPOISON(memory_.data(), memory_.size()); }

  void resize(size_t bytes) {
    EMULATOR_UNPOISON(memory_.data(), memory_.size());
    size_ = bytes;
    if (memory_.size() < bytes + 2 * guard + 32) memory_.resize(bytes + 2 * guard + 32);
    // Aligned to 16 bytes as promised, and to no more.
    const size_t odd = reinterpret_cast<size_t>(memory_.data() + guard) % 32;
    bytes_ = memory_.data() + guard + (48 - odd) % 32;
    memset(bytes_ - guard, pattern, guard);
    memset(bytes_ + size_, pattern, guard);
    EMULATOR_POISON(bytes_ - guard, guard);
    EMULATOR_POISON(bytes_ + (size_ + 7) / 8 * 8, guard - 8);
  }

  void poison() { memset(bytes_, 0xff, size_); }

  bool intact() const {
#ifndef EMULATOR_ADDRESS_SANITIZER
    for (size_t i = 0; i < guard; ++i)
      if (bytes_[i - guard] != pattern || bytes_[size_ + i] != pattern) return false;
#endif
    return true;
  }

  unsigned char* bytes() { return bytes_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t guard = 256;
  static constexpr unsigned char pattern = 0x5c;
  std::vector<unsigned char> memory_;
  unsigned char* bytes_ = nullptr;
  size_t size_ = 0;
};

}  // namespace emulator
