// Micro-benchmarks whose times are the simulator's constants: each kernel repeats one thing `repeats` times.
//
// Times are taken outside, by events; what a launch costs drops out of the difference of two counts. Every spin ends
// after kPatience polls, so that a machine where a probe cannot work reports nonsense instead of hanging.
#include "amk/sync.cuh"

namespace {

using amk::u32;
using amk::u64;

constexpr u32 kPatience = 1u << 24;
constexpr int kChunk = 2048;

struct Probe {
  const uint4* data;
  u32* words;        // counters, zeroed before every launch; 32 words apart
  u64* out;          // a result per block
  u64 vectors;       // 16-byte elements of data
  u32 repeats;
};

__device__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

// A chain of loads that the L2 answers: the next address depends on the last value, which is zero.
extern "C" __global__ void __launch_bounds__(32) amk_probe_chase(const __grid_constant__ Probe p) {
  u32 at = 0;
  const u32* words = p.words + 4096;
  for (u32 i = 0; i < p.repeats; ++i) at = (i * 32 + amk::sync::poll_relaxed(words + at)) & 0x3fff;
  if (at == 1) p.out[0] = at;  // which only the loads decide
}

// Two blocks, one counter each: a round trip is two signals, each seen by the other's poll.
extern "C" __global__ void __launch_bounds__(32) amk_probe_ping(const __grid_constant__ Probe p) {
  if (threadIdx.x != 0) return;
  u32* mine = p.words + blockIdx.x * 32;
  const u32* other = p.words + (1 - blockIdx.x) * 32;
  for (u32 i = 0; i < p.repeats; ++i) {
    if (blockIdx.x == 0) amk::sync::signal_relaxed(mine, 1);
    for (u32 polls = 0; polls < kPatience; ++polls) {
      if (amk::sync::reached(amk::sync::poll_relaxed(other), i + 1)) break;
    }
    if (blockIdx.x == 1) amk::sync::signal_relaxed(mine, 1);
  }
}

extern "C" __global__ void __launch_bounds__(128) amk_probe_barrier_4(const __grid_constant__ Probe p) {
#pragma unroll 1
  for (u32 i = 0; i < p.repeats; ++i) amk::sync::cta_barrier<1, 128>();
}

extern "C" __global__ void __launch_bounds__(512) amk_probe_barrier_16(const __grid_constant__ Probe p) {
#pragma unroll 1
  for (u32 i = 0; i < p.repeats; ++i) amk::sync::cta_barrier<1, 512>();
}

// One copy at a time from memory that no cache holds: its latency.
extern "C" __global__ void __launch_bounds__(32) amk_probe_copy(const __grid_constant__ Probe p) {
  __shared__ __align__(128) char slot[kChunk];
  const u64 chunks = p.vectors * 16 / kChunk;
#if __CUDA_ARCH__ >= 900
  __shared__ u64 full;
  if (threadIdx.x == 0) amk::sync::mbarrier_init(&full, 1);
  if (threadIdx.x == 0) amk::sync::fence_mbarrier_init();
#endif
  amk::sync::warp_barrier();
  u32 parity = 0;
  for (u32 i = 0; i < p.repeats; ++i) {
    const char* from = reinterpret_cast<const char*>(p.data) + (i * 7919ull) % chunks * kChunk;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      amk::sync::mbarrier_arrive_expect_tx(&full, kChunk);
      amk::sync::bulk_load(slot, from, kChunk, &full);
    }
    for (u32 polls = 0; polls < kPatience; ++polls) {
      if (amk::sync::mbarrier_try_wait(&full, parity, 1000)) break;
    }
    amk::sync::warp_barrier();
    parity ^= 1;
#else
    for (int k = 0; k < kChunk / 512; ++k) {
      const int at = (k * 32 + threadIdx.x) * 16;
      amk::sync::copy_16(slot + at, from + at);
    }
    amk::sync::copy_commit();
    amk::sync::copy_wait<0>();
    amk::sync::warp_barrier();
#endif
  }
  if (parity == 7) p.out[0] = slot[threadIdx.x];
}

// `repeats` passes over `vectors` elements by every block for itself (one block: one SM alone), 16 bytes a load.
extern "C" __global__ void __launch_bounds__(1024) amk_probe_read(const __grid_constant__ Probe p) {
  u32 mixed = 0;
  const u64 begin = p.vectors * blockIdx.x;
  const u64 start = nanoseconds();
  for (u32 pass = 0; pass < p.repeats; ++pass) {
    for (u64 i = threadIdx.x; i + 3 * blockDim.x < p.vectors; i += 4 * blockDim.x) {
      uint4 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __ldcg(p.data + begin + i + j * blockDim.x);
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  }
  const u64 end = nanoseconds();
  if (mixed == 0x9e3779b9u) p.words[8192] = mixed;
  if (threadIdx.x == 0) p.out[blockIdx.x] = end - start;
}
