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
constexpr int kAhead = 8;  // loads of a thread in flight: 32 KiB of a block of 256 readers

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

// kBatch copies at a time from memory that no cache holds: their latency, and what asking for one more adds.
template <int kBatch>
__device__ void copies(const Probe& p) {
  __shared__ __align__(128) char slots[kBatch][kChunk];
  const u64 chunks = p.vectors * 16 / kChunk;
#if __CUDA_ARCH__ >= 900
  __shared__ u64 full;
  if (threadIdx.x == 0) amk::sync::mbarrier_init(&full, 1);
  if (threadIdx.x == 0) amk::sync::fence_mbarrier_init();
#endif
  amk::sync::warp_barrier();
  u32 parity = 0;
  for (u32 i = 0; i < p.repeats; ++i) {
    const char* data = reinterpret_cast<const char*>(p.data);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      amk::sync::mbarrier_arrive_expect_tx(&full, kBatch * kChunk);
      for (int b = 0; b < kBatch; ++b) {
        amk::sync::bulk_load(slots[b], data + (i * kBatch + b) * 7919ull % chunks * kChunk, kChunk, &full);
      }
    }
    for (u32 polls = 0; polls < kPatience; ++polls) {
      if (amk::sync::mbarrier_try_wait(&full, parity, 1000)) break;
    }
    amk::sync::warp_barrier();
    parity ^= 1;
#else
    for (int b = 0; b < kBatch; ++b) {
      const char* from = data + (i * kBatch + b) * 7919ull % chunks * kChunk;
      for (int k = 0; k < kChunk / 512; ++k) {
        const int at = (k * 32 + threadIdx.x) * 16;
        amk::sync::copy_16(slots[b] + at, from + at);
      }
    }
    amk::sync::copy_commit();
    amk::sync::copy_wait<0>();
    amk::sync::warp_barrier();
#endif
  }
  if (parity == 7) p.out[0] = slots[0][threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32) amk_probe_copy(const __grid_constant__ Probe p) { copies<1>(p); }

extern "C" __global__ void __launch_bounds__(32) amk_probe_copy_8(const __grid_constant__ Probe p) { copies<8>(p); }

// amk_probe_chase by the first warp of every block, while the others keep 32 KiB of reads in flight that no cache holds.
extern "C" __global__ void __launch_bounds__(288) amk_probe_loaded(const __grid_constant__ Probe p) {
  __shared__ u32 done;
  if (threadIdx.x == 0) done = 0;
  amk::sync::cta_barrier<1, 288>();
  if (threadIdx.x < 32) {
    u32 at = 0;
    const u32* words = p.words + 4096;
    for (u32 i = 0; i < p.repeats; ++i) at = (i * 32 + amk::sync::poll_relaxed(words + at)) & 0x3fff;
    if (threadIdx.x == 0) *static_cast<volatile u32*>(&done) = 1 + at;
    return;
  }
  const uint4* data = p.data + (p.vectors / gridDim.x) * blockIdx.x;
  const u64 own = p.vectors / gridDim.x;
  u32 mixed = 0;
  u64 i = threadIdx.x - 32;
  for (u32 polls = 0; polls < kPatience && *static_cast<volatile u32*>(&done) == 0; ++polls) {
    uint4 v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) v[j] = __ldcs(data + (i + j * 256) % own);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    i += kAhead * 256;
  }
  if (mixed == 0x9e3779b9u) p.out[0] = mixed;
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

// Every block reads its own part of `vectors` elements, round and round, for `repeats` nanoseconds: out[2 b] is the SM that block
// b runs on, out[2 b + 1] how many elements it has read.
extern "C" __global__ void __launch_bounds__(1024) amk_probe_share(const __grid_constant__ Probe p) {
  const u64 own = p.vectors / gridDim.x;
  const uint4* data = p.data + own * blockIdx.x;
  u32 mixed = 0;
  u64 at = threadIdx.x, count = 0;
  const u64 end = nanoseconds() + p.repeats;
  while (nanoseconds() < end) {
    uint4 v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) v[j] = __ldcs(data + (at + j * blockDim.x) % own);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    at += kAhead * blockDim.x;
    count += kAhead * blockDim.x;
  }
  if (mixed == 0x9e3779b9u) p.words[8192] = mixed;
  if (threadIdx.x == 0) {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    p.out[2 * blockIdx.x] = sm;
    p.out[2 * blockIdx.x + 1] = count;
  }
}
