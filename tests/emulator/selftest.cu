// Kernels that try the emulator: each right one must give the right numbers, and each with a planted fault must be
// found out (test_emulator.py).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "device.h"
#include "launch.h"

namespace {

using namespace geowidth::cuda;

// What every kernel here is given; each takes what it needs.
struct Arguments {
  const void* in;
  void* out;
  unsigned* counter;
  int n;
  int fault;  // 0: none
};

template <typename T>
T* shared() {
  return reinterpret_cast<T*>(dynamic_shared());
}

__device__ unsigned linear_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

// out[t] = in[t + 1]: through shared memory. Faults: 1 no barrier, 2 one more element written, 3 one never written.
__global__ void neighbours(Arguments a) {
  const auto* in = static_cast<const float*>(a.in);
  auto* kept = shared<float>();
  const int t = static_cast<int>(threadIdx.x);
  if (a.fault != 3 || t != 0) kept[t] = in[t];
  if (a.fault == 2 && t == 0) kept[a.n] = 0.0f;
  if (a.fault != 1) __syncthreads();
  static_cast<float*>(a.out)[t] = kept[(t + 1) % a.n];
}

// Turns the block's numbers round by one place, five times: two barriers a turn. Fault 1: the second one is missing.
__global__ void carousel(Arguments a) {
  auto* kept = shared<int>();
  const int t = static_cast<int>(threadIdx.x);
  kept[t] = static_cast<const int*>(a.in)[t];
  __syncthreads();
  for (int turn = 0; turn < 5; ++turn) {
    const int next = kept[(t + 1) % a.n];
    __syncthreads();
    kept[t] = next;
    if (a.fault == 0) __syncthreads();
  }
  static_cast<int*>(a.out)[t] = kept[t];
}

// Sum of a block of any shape by shuffles and shared memory. Fault 1: no barrier between the warps' sums and the total.
template <typename T>
__global__ void block_sum(Arguments a) {
  auto* sums = shared<T>();
  const unsigned t = linear_thread(), threads = blockDim.x * blockDim.y * blockDim.z;
  T value = t < static_cast<unsigned>(a.n) ? static_cast<const T*>(a.in)[t] : T(0);
  for (int step = warpSize / 2; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (t % warpSize == 0) sums[t / warpSize] = value;
  if (a.fault != 1) __syncthreads();
  if (t == 0) {
    T total = 0;
    for (unsigned w = 0; w < threads / warpSize; ++w) total += sums[w];
    *static_cast<T*>(a.out) = total;
  }
}

// out[lane] by every kind of shuffle in segments of n lanes, 64 lanes' worth each.
template <typename T>
__global__ void shuffles(Arguments a) {
  const unsigned all = 0xffffffffu, t = threadIdx.x;
  const T value = static_cast<const T*>(a.in)[t];
  auto* out = static_cast<T*>(a.out);
  out[t] = __shfl_sync(all, value, 3, a.n);
  out[64 + t] = __shfl_up_sync(all, value, 2, a.n);
  out[128 + t] = __shfl_down_sync(all, value, 1, a.n);
  out[192 + t] = __shfl_xor_sync(all, value, 5, a.n);
}

// One warp. Faults: 1 reads a lane outside the mask, 2 lanes name different masks, 3 a lane leaves itself out, 4 lanes
// call different functions, 5 reads a lane that has left.
__global__ void partial_warp(Arguments a) {
  auto* out = static_cast<unsigned*>(a.out);
  const unsigned t = threadIdx.x;
  if (t >= 16 && a.fault == 3) out[t] = __ballot_sync(0x0000ffffu, 1);
  if (t >= 24) return;
  if (a.fault == 5) __syncwarp(0x00ffffffu);
  if (t < 16) {
    const unsigned mask = a.fault == 2 && t == 5 ? 0x00007fffu : a.fault == 5 ? 0x00ffffffu | 1u << 31 : 0x0000ffffu;
    if (a.fault == 4 && t == 7)
      out[t] = static_cast<unsigned>(__any_sync(mask, 1));
    else if (a.fault == 5)
      out[t] = __shfl_sync(mask & 0x8000ffffu, t, 31);
    else
      out[t] = __shfl_sync(mask, 100 + t, a.fault == 1 ? 20 : 2) + __ballot_sync(mask, t % 2);
  } else {
    out[t] = __ballot_sync(0x00ff0000u, t < 18);
  }
}

__global__ void votes(Arguments a) {
  const int value = static_cast<const int*>(a.in)[threadIdx.x];
  int* out = static_cast<int*>(a.out) + 7 * threadIdx.x;
  out[0] = __syncthreads_or(value);
  out[1] = __syncthreads_and(value);
  out[2] = __syncthreads_count(value);
  out[3] = static_cast<int>(__ballot_sync(0xffffffffu, value));
  out[4] = __any_sync(0xffffffffu, value);
  out[5] = __all_sync(0xffffffffu, value);
  __syncwarp();
  out[6] = warpSize;
}

__global__ void atomics(Arguments a) {
  const int value = static_cast<const int*>(a.in)[blockIdx.x * blockDim.x + threadIdx.x];
  auto* whole = static_cast<int*>(a.out);
  atomicAdd(whole, value);
  atomicMax(whole + 1, value);
  atomicMin(whole + 2, value);
  int seen = whole[3];  // a sum by compare and swap
  for (int before = seen + 1; before != seen;) {
    before = seen;
    seen = atomicCAS(whole + 3, before, before + value);
  }
  atomicExch(whole + 4, 7);
  atomicAdd(reinterpret_cast<float*>(whole + 5), static_cast<float>(value));
  atomicAdd(reinterpret_cast<double*>(whole + 6), static_cast<double>(value));
  atomicAdd(reinterpret_cast<unsigned long long*>(whole + 8), 1ull << 33);
  // Fault 1: read, wait, write. Other threads' additions between are lost.
  if (a.fault == 0) {
    atomicAdd(a.counter, 1u);
  } else {
    const unsigned before = *a.counter;
    __syncwarp();
    *a.counter = before + 1;
  }
}

// The last block to finish adds up what the blocks left. out: one number a block, then the total.
__global__ void last_block(Arguments a) {
  auto* out = static_cast<float*>(a.out);
  out[blockIdx.x] = static_cast<const float*>(a.in)[blockIdx.x];
  __threadfence();
  if (atomicAdd(a.counter, 1u) + 1 < gridDim.x) return;
  float total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += out[b];
  out[gridDim.x] = total;
}

// A ring of blocks: n times over, every block takes its right neighbour's number and adds one. out holds two numbers a
// block. Faults: 1 the last block leaves before the second barrier, 2 no grid barrier.
__global__ void ring(Arguments a) {
  auto* out = static_cast<int*>(a.out);
  unsigned phase = 0;
  const unsigned blocks = gridDim.x, block = blockIdx.x;
  if (threadIdx.x == 0) out[block] = static_cast<const int*>(a.in)[block];
  for (int turn = 0; turn < a.n; ++turn) {
    if (a.fault == 1 && turn == 1 && block == blocks - 1) return;
    if (a.fault != 2) grid_barrier(a.counter, phase);
    const int* from = out + (turn % 2) * static_cast<int>(blocks);
    int* to = out + ((turn + 1) % 2) * static_cast<int>(blocks);
    if (threadIdx.x == 0) to[block] = from[(block + 1) % blocks] + 1;
  }
}

// Threads from n on do nothing. Faults: 1 they leave before a barrier that the others reach, 2 they wait at another
// one, 3 the first thread waits for a flag that no one sets, 4 likewise by an atomic operation.
__global__ void divergent(Arguments a) {
  const int t = static_cast<int>(threadIdx.x);
  auto* out = static_cast<int*>(a.out);
  if (a.fault == 0 && t >= a.n) return;
  if (a.fault == 1) {
    if (t >= a.n) return;
    __syncthreads();
  }
  if (a.fault == 2) {
    if (t >= a.n)
      __syncthreads();
    else
      __syncthreads();
  }
  if (a.fault == 3) {
    if (t == 0)
      while (*static_cast<volatile unsigned*>(a.counter) == 0) __nanosleep(100);
    __syncthreads();
  }
  out[t] = t;
}

// Copies in vectors of 16 bytes. Fault 1: from one element on.
__global__ void vectors(Arguments a) {
  const auto* in = reinterpret_cast<const float4*>(static_cast<const float*>(a.in) + (a.fault == 1));
  auto* out = static_cast<float4*>(a.out);
  const float4 v = __ldg(in + threadIdx.x);
  __stcs(out + threadIdx.x, make_float4(v.x, v.y, v.z, v.w));
}

// float bits -> (bf16 bits, bf16 widened, half bits, half widened).
__global__ void rounding(Arguments a) {
  const float value = static_cast<const float*>(a.in)[threadIdx.x];
  auto* out = static_cast<unsigned*>(a.out) + 4 * threadIdx.x;
  const __nv_bfloat16 brain = __float2bfloat16(value);
  const __half half_value = __float2half(value);
  out[0] = __bfloat16_as_ushort(brain);
  out[1] = __float_as_uint(__bfloat162float(brain));
  out[2] = __half_as_ushort(half_value);
  out[3] = __float_as_uint(__half2float(half_value));
}

// The order in which threads and blocks come by.
__global__ void order(Arguments a) {
  static_cast<unsigned*>(a.out)[atomicAdd(a.counter, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

// Faults: 0 none, 1 writes one element too many, 2 reads one too many, 3 a sum of int overflows, 4 a shift too far,
// 5 more stack than there is.
__global__ void careless(Arguments a) {
  const auto* in = static_cast<const int*>(a.in);
  auto* out = static_cast<int*>(a.out);
  const int t = static_cast<int>(threadIdx.x), more = a.fault == 1 || a.fault == 2;
  if (t >= a.n + more) return;
  int value = t == a.n && a.fault == 1 ? 0 : in[t];
  if (a.fault == 3) value += 0x7fffffff;
  if (a.fault == 4) value <<= value + 31;
  if (a.fault == 5) {
    volatile char much[66000];
    for (int i = 65999; i >= 0; --i) much[i] = static_cast<char>(i);
    value += much[t];
  }
  if (t < a.n || a.fault == 1) out[t] = value;
}

struct Named {
  const char* name;
  void (*kernel)(Arguments);
};

const Named kernels[] = {
    {"neighbours", &neighbours},
    {"carousel", &carousel},
    {"block_sum_float", &block_sum<float>},
    {"block_sum_int64", &block_sum<long long>},
    {"shuffles_int", &shuffles<int>},
    {"shuffles_int64", &shuffles<long long>},
    {"shuffles_float", &shuffles<float>},
    {"shuffles_double", &shuffles<double>},
    {"partial_warp", &partial_warp},
    {"votes", &votes},
    {"atomics", &atomics},
    {"last_block", &last_block},
    {"ring", &ring},
    {"divergent", &divergent},
    {"vectors", &vectors},
    {"rounding", &rounding},
    {"order", &order},
    {"careless", &careless},
};

std::string failure;

}  // namespace

// An empty string, or why the launch of the kernel of that name failed.
extern "C" __attribute__((visibility("default"))) const char* selftest(const char* name, const unsigned* grid,
                                                                       const unsigned* block, size_t shared_bytes,
                                                                       int cooperative, const void* in, void* out,
                                                                       unsigned* counter, int n, int fault) {
  failure = "no kernel of that name";
  for (const Named& each : kernels)
    if (strcmp(each.name, name) == 0) try {
        failure.clear();
        launch(each.kernel,
               {dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared_bytes, cooperative != 0},
               nullptr, Arguments{in, out, counter, n, fault});
      } catch (const std::runtime_error& error) {
        failure = error.what();
      }
  return failure.c_str();
}
