// The words of faults.
#include <cstdio>
#include <map>

#include "engine.h"

namespace emulator {

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
    case Kind::shuffle_16: return "__shfl_sync of 16 bits";
    case Kind::shuffle_32: return "__shfl_sync of 32 bits";
    case Kind::shuffle_64: return "__shfl_sync of 64 bits";
  }
  return "";
}

std::string words(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string words(const Thread& thread) {
  return "thread " + words(thread.index) + " of block " + words(thread.block->index);
}

std::string waits(const Thread& thread) {
  const Site& site = thread.site;
  const std::string place = std::string(" at ") + site.file + ":" + std::to_string(site.line) + " in " + site.function;
  char mask[16];
  snprintf(mask, sizeof mask, "0x%08x", thread.mask);
  switch (thread.state) {
    case State::at_barrier: return name(thread.kind) + place;
    case State::in_collective: return std::string(name(thread.kind)) + " by lanes " + mask + place;
    case State::asleep: return "__nanosleep" + place;
    case State::left: return "the end of the kernel";
    case State::ready: break;
  }
  return "nothing";
}

// Of the first few blocks: how many threads wait at what.
std::string Engine::where_everyone_is() const {
  constexpr size_t most_blocks = 3;
  std::string text;
  for (size_t b = 0; b < started_ && b < most_blocks; ++b) {
    std::map<std::string, std::vector<const Thread*>> groups;
    for (const Thread& thread : blocks_[b]->threads) groups[waits(thread)].push_back(&thread);
    text += " Block " + words(blocks_[b]->index) + ":";
    for (const auto& group : groups)
      text += " " + std::to_string(group.second.size()) + " of " + std::to_string(blocks_[b]->threads.size()) +
              " threads, first " + words(group.second[0]->index) + ", at " + group.first + ";";
  }
  if (started_ > most_blocks) text += " and so on in " + std::to_string(started_ - most_blocks) + " more blocks";
  return text;
}

}  // namespace emulator
