// Large buffers: on a cache line, and on huge pages where the system has them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace geowidth {

// Asks for huge pages under memory that is about to be written for the first time: faulting in a fresh matrix page by
// small page costs more than computing it. Advice only, changes no content, does nothing where it cannot be followed.
inline void advise_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t huge = uintptr_t(1) << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + huge - 1) / huge * huge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / huge * huge;
  if (memory && end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Buffer = std::unique_ptr<T[], FreeMemory>;

// `count` elements, not initialised. Throws std::bad_alloc.
template <typename T>
Buffer<T> allocate(int64_t count) {
  const size_t bytes = (static_cast<size_t>(count > 0 ? count : 1) * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  if (!memory) throw std::bad_alloc();
  advise_huge_pages(memory, static_cast<int64_t>(bytes));
  return Buffer<T>(static_cast<T*>(memory));
}

}  // namespace geowidth
