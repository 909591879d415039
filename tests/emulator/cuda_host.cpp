#include "cuda_host.h"

#include <cstring>
#include <map>
#include <mutex>

#include "cuda_runtime.h"

namespace emulator {
namespace {

constexpr int most_threads = 1024, threads_of_multiprocessor = 2048, blocks_of_multiprocessor = 32;
constexpr int shared_bytes_the_system_keeps = 1024;  // of every block

std::mutex guarding;
std::map<const void*, int> shared_bytes_allowed;
cudaError_t last_error = cudaSuccess;
std::string last_failure = "unspecified launch failure";

cudaError_t noted(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

int allowed_shared_bytes(const void* kernel) {
  const auto found = shared_bytes_allowed.find(kernel);
  return found == shared_bytes_allowed.end() ? shared_bytes_without_asking : found->second;
}

// What the driver would refuse.
cudaError_t verdict(const void* kernel, const Launch& how) {
  const dim3 grid = how.grid, block = how.block;
  if (!(grid.x && grid.y && grid.z && block.x && block.y && block.z)) return cudaErrorInvalidConfiguration;
  if (grid.x > 0x7fffffffu || grid.y > 65535u || grid.z > 65535u) return cudaErrorInvalidConfiguration;
  if (block.x > 1024u || block.y > 1024u || block.z > 64u) return cudaErrorInvalidConfiguration;
  const size_t threads = static_cast<size_t>(block.x) * block.y * block.z;
  if (threads > most_threads) return cudaErrorInvalidConfiguration;
  if (how.shared_bytes > static_cast<size_t>(allowed_shared_bytes(kernel))) return cudaErrorInvalidValue;
  if (!how.cooperative) return cudaSuccess;
  int blocks = 0;
  occupancy(&blocks, static_cast<int>(threads), how.shared_bytes);
  const uint64_t room = static_cast<uint64_t>(blocks) * static_cast<uint64_t>(device.multiprocessors);
  const uint64_t wanted = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  return wanted > room ? cudaErrorCooperativeLaunchTooLarge : cudaSuccess;
}

}  // namespace

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const std::lock_guard<std::mutex> lock(guarding);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > device.shared_bytes) return noted(cudaErrorInvalidValue);
  shared_bytes_allowed[kernel] = value;
  return cudaSuccess;
}

cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* kernel) {
  const std::lock_guard<std::mutex> lock(guarding);
  *attributes = {};
  attributes->maxThreadsPerBlock = most_threads;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 10 * device.capability_major + device.capability_minor;
  attributes->maxDynamicSharedSizeBytes = allowed_shared_bytes(kernel);
  return cudaSuccess;
}

// By threads and shared memory; registers are not known here.
cudaError_t occupancy(int* blocks, int threads, size_t shared_bytes) {
  *blocks = 0;
  if (threads < 1 || threads > most_threads) return noted(cudaErrorInvalidValue);
  const int by_threads = threads_of_multiprocessor / ((threads + warp_lanes - 1) / warp_lanes * warp_lanes);
  const size_t room = static_cast<size_t>(device.shared_bytes) + shared_bytes_the_system_keeps;
  const auto by_shared = static_cast<int>(room / (shared_bytes + shared_bytes_the_system_keeps));
  *blocks = min(min(by_threads, by_shared), blocks_of_multiprocessor);
  return cudaSuccess;
}

cudaError_t launch(const void* kernel, const Launch& how, const std::function<void()>& body) {
  {
    const std::lock_guard<std::mutex> lock(guarding);
    const cudaError_t status = verdict(kernel, how);
    if (status != cudaSuccess) return noted(status);
  }
  const std::string failure = run(how, body);
  if (failure.empty()) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(guarding);
  last_failure = failure;
  return noted(cudaErrorLaunchFailure);
}

}  // namespace emulator

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidPitchValue: return "invalid pitch argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorLaunchFailure: return emulator::last_failure.c_str();
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : cudaGetErrorString(status);
}

cudaError_t cudaPeekAtLastError() { return emulator::last_error; }

cudaError_t cudaGetLastError() { return std::exchange(emulator::last_error, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  using namespace emulator;
  if (number != 0) return noted(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = most_threads; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = shared_bytes_without_asking; break;
    case cudaDevAttrWarpSize: *value = warp_lanes; break;
    case cudaDevAttrMultiProcessorCount: *value = device.multiprocessors; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = threads_of_multiprocessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = device.capability_major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = device.capability_minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_bytes + shared_bytes_the_system_keeps;
      break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = device.shared_bytes; break;
  }
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t) {
  if (bytes) memset(address, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (bytes) memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return emulator::noted(cudaErrorInvalidPitchValue);
  for (size_t i = 0; i < height && width; ++i)
    memcpy(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width);
  return cudaSuccess;
}

// ---- for the tests, called through ctypes

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

EMULATOR_EXPORT void emulator_set_seed(uint64_t seed) { emulator::set_seed(seed); }

EMULATOR_EXPORT void emulator_set_device(int multiprocessors, int shared_bytes, int major, int minor) {
  emulator::device = {multiprocessors, shared_bytes, major, minor};
  emulator::shared_bytes_allowed.clear();
}

// In the order of the struct's members.
EMULATOR_EXPORT void emulator_statistics(uint64_t* values) {
  memcpy(values, &emulator::statistics, sizeof emulator::statistics);
}

EMULATOR_EXPORT void emulator_reset_statistics() { emulator::statistics = {}; }

EMULATOR_EXPORT const char* emulator_last_failure() { return emulator::last_failure.c_str(); }
