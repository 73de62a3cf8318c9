// What one warp of the kernel knows: where it stands, its registers of the decode state, its ring.
#pragma once
#include <cuda_bf16.h>

#include "amk/row_at.cuh"
#include "amk/sync.cuh"
#include "amk/watchdog.cuh"

namespace amk {

using bf16 = __nv_bfloat16;
struct fp8 {
  unsigned char e4m3;
};

// The same value, which from here on only a register has: it is not read again from where it came.
__device__ __forceinline__ int held(int value) { return sync::opaque(value); }

// Plan and Globals are generated from the schedule: Plan holds every constant, Globals every device pointer.
template <class Plan, class Globals, class Ring>
struct Context {
  using P = Plan;
  const Globals& globals;
  char* shared;
  sync::Watchdog& dog;
  Ring ring;
  typename Plan::Shares shares;
  int worker;
  int warp;
  int lane;
  // That the step reads: of the sequences decoded together, or of a sequence's rows. Of more than 8, lane s has that of number s.
  static constexpr bool kTokenALane = Plan::kBatch > 8;
  static constexpr int kTokens = kTokenALane ? (Plan::kBatch + 31) / 32 : Plan::kBatch;
  int tokens[kTokens] = {};
  int pos = 0;    // of the sequence that the worker's head belongs to
  int place = 0;  // in lane s, if sequences are live: position of sequence s
  u32 epoch = 0;
  int done = 0;   // bit s: sequence s has ended
  int later = 0;  // likewise sequence 32 + s
  int n = 0;
  int l = 0;
  int p = 0;  // of a loop over parts of a product
  u32* trace = nullptr;

  // Before each step. Otherwise the addresses of all steps are hoisted out of the layer loop, and spilled.
  __device__ __forceinline__ void enter_step() {
    lane = sync::opaque(lane), warp = sync::opaque(warp), pos = sync::opaque(pos);
    shares.hold();
  }

  // Cycle counter of the SM at the start of the token and after each step of this warp; the last token's stay.
  __device__ __forceinline__ void mark() {
    if (lane == 0) *trace++ = static_cast<u32>(clock64());
  }
  __device__ __forceinline__ void restart_trace(int length) {
    trace = globals.trace + (worker * static_cast<int>(blockDim.x / 32) + warp) * length;
    mark();
  }
};

// The index-th of `parts` contiguous shares of [0, total); the same rule as split() of the schedule's ops.
__device__ __forceinline__ int share_begin(int total, int parts, int index) { return total * index / parts; }

// Where element i of a staged vector stands: in each run of 8 the second and the third pair change places, so that a lane of
// gemv reads the two pairs it needs as 8 bytes.
// Bits of i, so that multiples of 8 added to it stay out of them.
__device__ __forceinline__ int x_place(int i) { return (i & ~6) | (i & 2) << 1 | (i & 4) >> 1; }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// 1 / rms from the per-agent sums of squares, added in agent order. Rows of whole 16 bytes are read so.
template <class P, int kAgents>
__device__ __forceinline__ float inverse_rms(const float* ssq) {
  float total = 0.f;
  if constexpr (kAgents % 4 == 0) {
#pragma unroll
    for (int a = 0; a < kAgents; a += 4) {
      const float4 four = *reinterpret_cast<const float4*>(ssq + a);
      total += four.x, total += four.y, total += four.z, total += four.w;
    }
  } else if constexpr (kAgents % 2 == 0) {
    for (int a = 0; a < kAgents; ++a) total += ssq[a];
  } else {
    // By address: the compiler would read three neighbours as four, and what is behind them is not declared.
    const u32 from = sync::shared_address(ssq);
#pragma unroll
    for (int a = 0; a < kAgents; ++a) total += __uint_as_float(sync::load_shared_u32(from + a * 4));
  }
  return rsqrtf(fmaf(total, 1.f / static_cast<float>(P::kHidden), P::kRmsEps));
}

// A worker's rows of all sequences are numbered as its partials lie: 8 of a group for each sequence in turn.
template <int kBatch>
struct Place {
  int row;  // of the worker
  int sequence;
  __device__ __forceinline__ explicit Place(int number)
      : row(kBatch == 1 ? number : number / (8 * kBatch) * 8 + number % 8), sequence(number / 8 % kBatch) {}
};

// The partials of one row group of a worker with `chunks` chunks of kRowGroups groups; see partial_slots() of the schedule's ops:
// agent a, which drains chunks [chunks * a / n, chunks * (a + 1) / n), left its sums for group g in slot g + a * kRowGroups,
// kBatch * 8 of them. pieces: 8 rows of a chunk each.
template <int kChunksPerGroup, int kAgents, int kBatch, int kRowGroups>
struct Partials {
  static constexpr int kSlot = 8 * kBatch * kRowGroups, kTogether = kAgents < 4 ? kAgents : 4;
  int chunks, first, last;  // agents

  __device__ __forceinline__ Partials(int group, int pieces) : chunks(pieces / kRowGroups) {
    // floor(m / chunks) as (m + 1/2) * (1 / chunks): at least 1 / (2 chunks) away from an integer, far above rounding.
    const float per_chunk = __fdividef(1.f, static_cast<float>(chunks));
    const int chunk = group / kRowGroups * kChunksPerGroup;
    first = static_cast<int>((static_cast<float>((chunk + 1) * kAgents) - 0.5f) * per_chunk);
    last = static_cast<int>((static_cast<float>((chunk + kChunksPerGroup) * kAgents) - 0.5f) * per_chunk);
  }

  // The sum of those of number `number` (see Place), which is one of the group's, in agent order. Where every agent drains some
  // chunk, several loads are in flight.
  __device__ __forceinline__ float sum(const float* part, int number) const {
    if constexpr (ablation::kNoSums) return static_cast<float>(number);
    const float* slot = part + number;
    float total = 0.f;
    if (chunks >= kAgents) {
#pragma unroll 1
      for (int a = first; a <= last; a += kTogether) {
        float v[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) v[k] = a + k <= last ? slot[(a + k) * kSlot] : 0.f;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) total += v[k];
      }
    } else {
#pragma unroll 1
      for (int a = first; a <= last; ++a) {
        if (share_begin(chunks, kAgents, a) < share_begin(chunks, kAgents, a + 1)) total += slot[a * kSlot];
      }
    }
    return total;
  }

  // The same of kN numbers, kApart from one to the next, each in the same order; the loads of all are in flight.
  template <int kApart, int kN>
  __device__ __forceinline__ void sums(const float* part, int number, float (&total)[kN]) const {
    const float* slot = part + number;
#pragma unroll
    for (int s = 0; s < kN; ++s) total[s] = ablation::kNoSums ? static_cast<float>(number) : 0.f;
    if constexpr (ablation::kNoSums) return;
#pragma unroll 1
    for (int a = first; a <= last; ++a) {
      if (chunks < kAgents && share_begin(chunks, kAgents, a) == share_begin(chunks, kAgents, a + 1)) continue;
      float v[kN];
#pragma unroll
      for (int s = 0; s < kN; ++s) v[s] = slot[a * kSlot + s * kApart];
#pragma unroll
      for (int s = 0; s < kN; ++s) total[s] += v[s];
    }
  }
};

template <int kChunksPerGroup, int kAgents, int kBatch, int kRowGroups>
__device__ __forceinline__ float sum_partials(const float* part, int number, int pieces) {
  return Partials<kChunksPerGroup, kAgents, kBatch, kRowGroups>(number / (8 * kBatch), pieces).sum(part, number);
}

}  // namespace amk
