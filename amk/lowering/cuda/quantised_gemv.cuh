// The matrix-vector product of gemv for weights that are codes with scales.
//
// Threads, shared memory and the slots of part as in gemv; reads x, scales and sums as vector_layouts.cuh writes them. A chunk holds
// the codes in 512-byte tiles, then fp16 scales [8 rows][groups], then zero points [8][groups] (u8). The tensor cores sum
// blocks of 64 columns from zero; lane 4 r (and 4 r + 1, for the second digit of x) scales and adds up row r in fp32, lanes 4 r + 2 and
// 4 r + 3 that of another half of a chunk's columns where blocks come in pairs.
// Where the scales of rows stand apart, the chunk is codes only, and a warp reads those of four groups at a time, ahead of their sums.
#pragma once
#include "amk/weights.cuh"

namespace amk {

// kBytes neighbouring bytes of shared memory, aligned as a whole, with the widest loads that divide them.
template <int kBytes>
__device__ __forceinline__ void load_run(u32 from, u32 (&out)[(kBytes + 3) / 4]) {
  static_assert(kBytes % 4 == 0 || kBytes < 4, "words, or less than one");
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 four = sync::load_shared_v4(from + i * 16);
      out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
    }
  } else if constexpr (kBytes % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i) {
      const uint2 two = sync::load_shared_v2(from + i * 8);
      out[2 * i] = two.x, out[2 * i + 1] = two.y;
    }
  } else if constexpr (kBytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) out[i] = sync::load_shared_u32(from + i * 4);
  } else if constexpr (kBytes == 2) {
    out[0] = sync::load_shared_u16(from);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) out[0] = (i == 0 ? 0 : out[0]) | sync::load_shared_u8(from + i) << 8 * i;
  }
}

// kCount halves that begin at a multiple of 2 bytes only are read one by one.
template <int kCount>
__device__ __forceinline__ void load_scales(u32 from, float (&out)[kCount]) {
  if constexpr (kCount == 1 || kCount % 2 != 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(sync::load_shared_u16(from + 2 * i))));
  } else {
    u32 pairs[kCount / 2];
    load_run<kCount * 2>(from, pairs);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float2 two = __half22float2(reinterpret_cast<const __half2&>(pairs[i]));
      out[2 * i] = two.x, out[2 * i + 1] = two.y;
    }
  }
}

template <int kCount, class T>
__device__ __forceinline__ void load_zeros(u32 from, T (&out)[kCount]) {
  if constexpr (kCount % 4 != 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = static_cast<T>(sync::load_shared_u8(from + i));
  } else {
    u32 words[kCount / 4];
    load_run<kCount>(from, words);
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = static_cast<T>(words[i / 4] >> i % 4 * 8 & 255u);
  }
}

// One number of each of the blocks of x that a chunk meets; `blocks` of them are the matrix's.
template <int kCount, bool kWhole>
__device__ __forceinline__ void load_blocks(u32 from, int blocks, float (&out)[kCount]) {
  u32 words[kCount] = {};
  if constexpr (kWhole) {
    load_run<kCount * 4>(from, words);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < blocks) words[i] = sync::load_shared_u32(from + i * 4);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = __uint_as_float(words[i]);
}

// What a lane multiplies, in shared memory: its place in the first block of x, the blocks' scales and sums.
struct StagedBlocks {
  u32 x, scales, sums;
};

// How the lanes share a chunk out. In pairs, lanes 16..31 read x of its second half and lanes 4 r + 2 and 4 r + 3 have the sums of
// that: half of the loads, scales and additions.
template <class M>
struct Halves {
  using W = typename M::Weights;
  static constexpr int kBlocks = M::kColumns / kBlock, kEach = W::kGroup / kBlock, kGroups = kBlocks / kEach;
  static constexpr bool kWhole = M::kK % M::kColumns == 0;
  static constexpr bool kPairs = W::kPairs && kWhole && kGroups % 2 == 0 && kBlocks % (2 * W::kBlocks) == 0;
  static constexpr int kCount = kPairs ? 2 : 1, kInputs = kBlocks / kCount, kOwn = kGroups / kCount;
  // The half that a lane reads x of, and the one that it has sums of.
  static __device__ __forceinline__ int reads(int lane) { return kPairs ? lane / 16 : 0; }
  static __device__ __forceinline__ int sums(int lane) { return kPairs ? lane % 4 / 2 : 0; }
};

// This lane's share of one chunk's product with x, whose blocks begin at `from` and number `blocks` up to the end of the
// matrix. offset: what a zero point of 1 takes off per unit of x's sum, in lanes that have a low digit. x: of the call before,
// or zero: so it stays where no block is read, whose scale is 0, and in lanes that read none. release() gives the slot back.
template <class M, bool kApart, class Release>
__device__ __forceinline__ float chunk_product(u32 slot, const StagedBlocks& from, typename M::Weights::Input (&x)[Halves<M>::kInputs],
                                               int blocks, float offset, int lane, Release release) {
  using W = typename M::Weights;
  using H = Halves<M>;
  constexpr int kBlocks = H::kBlocks, kEach = H::kEach, kGroups = H::kGroups, kInputs = H::kInputs, kOwn = H::kOwn;
  constexpr bool kWhole = H::kWhole, kSums = W::kZeros;
  const u32 behind = slot + kBlocks / W::kBlocks * 512;
  uint4 v[kBlocks / W::kBlocks];
  float scale[kInputs], sum[kInputs], weight_scale[kOwn], zero[kOwn];
  const int half = H::sums(lane);
#pragma unroll
  for (int i = 0; i < kBlocks / W::kBlocks; ++i) v[i] = sync::load_shared_v4(slot + lane * 16 + i * 512);
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if constexpr (!W::kEarly) x[i] = {};
    if (kWhole || i < blocks) W::input(x[i], from.x + i * (2 * kBlock), lane);
  }
  load_blocks<kInputs, kWhole>(from.scales, blocks, scale);
  if constexpr (kSums) load_blocks<kInputs, kWhole>(from.sums, blocks, sum);
  if constexpr (!kApart) load_scales(behind + lane / 4 * (2 * kGroups) + half * (2 * kOwn), weight_scale);
  if constexpr (W::kZeros) load_zeros(behind + 16 * kGroups + lane / 4 * kGroups + half * kOwn, zero);
  if constexpr (W::kEarly) release();
  float total = 0.f;
#pragma unroll
  for (int group = 0; group < kOwn; ++group) {
    float y = 0.f, of_x = 0.f;
#pragma unroll
    for (int i = group * kEach; i < (group + 1) * kEach; ++i) {
      if constexpr (H::kPairs) {
        y = fmaf(W::sum(v[i / W::kBlocks], v[(i + kInputs) / W::kBlocks], i % W::kBlocks, x[i], half != 0), scale[i], y);
      } else {
        y = fmaf(W::sum(v[i / W::kBlocks], i % W::kBlocks, x[i]), scale[i], y);
      }
      if constexpr (kSums) of_x += sum[i];
    }
    if constexpr (kSums) y = fmaf(-offset * zero[group], of_x, y);
    total = kApart ? total + y : fmaf(weight_scale[group], y, total);
  }
  if constexpr (!W::kEarly) release();
  return total;
}

template <class S, class C>
__device__ __forceinline__ void quantised_gemv(C& c) {
  static_assert(C::P::kBatch == 1 && S::kCut == 1, "one sequence, all columns at once");
  using M = typename S::Matrix;
  using W = typename M::Weights;
  using H = Halves<M>;
  constexpr int kGroups = (M::kRows + 7) / 8;
  const int agent = c.warp - S::kFirst, chunks = M::count(c) * M::kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  StagedBlocks x = {};
  x.x = sync::opaque(sync::shared_address(S::x(c)) + W::place(c.lane));
  x.scales = sync::opaque(sync::shared_address(S::scales(c)));
  if constexpr (S::kHasSums) x.sums = sync::opaque(sync::shared_address(S::sums(c)));
  if constexpr (H::kPairs) {
    x.x += H::reads(c.lane) * (H::kInputs * 2 * kBlock);
    x.scales += H::sums(c.lane) * (H::kInputs * 4), x.sums += H::sums(c.lane) * (H::kInputs * 4);
  }
  const float weight = W::weight(c.lane), offset = c.lane % (H::kPairs ? 2 : 4) == 0 ? W::kUnit : 0.f;
  float* part = S::part(c) + agent * 8 + c.lane / 4;
  const int begin = lo / M::kChunks;
  int group = begin, column = lo % M::kChunks;
  float total = 0.f, row_scales = 1.f;
  typename W::Input input[H::kInputs] = {};
  // Lane 8 i + r: the scale of row r of the i-th of four groups.
  const auto fetch_scales = [&](int first) {
    if constexpr (S::kHasRowScales) {
      const int at = (S::layer(c) * kGroups + M::first(c) + first) * 8 + c.lane;
      if ((first + c.lane / 8) * M::kChunks < hi) row_scales = sync::load_constant(S::row_scales(c).data + at);
    }
  };
  const auto flush = [&] {
    float y = total * weight;
    if constexpr (W::kLanes == 2) y += __shfl_xor_sync(0xffffffffu, y, 1);
    if constexpr (H::kPairs) y += __shfl_xor_sync(0xffffffffu, y, 2);
    if constexpr (S::kHasRowScales) y *= __shfl_sync(0xffffffffu, row_scales, (group - begin) % 4 * 8 + c.lane / 4);
    if (c.lane % 4 == 0) part[group * 8] = y;
    total = 0.f;
  };
  if (lo < hi) fetch_scales(begin);
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const u32 slot = c.ring.wait(c.dog, c.warp);
    const int first = column * (M::kColumns / kBlock);
    const StagedBlocks from = {x.x + first * (2 * kBlock), x.scales + first * 4, x.sums + first * 4};
    const auto release = [&] { c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1); };
    const int blocks = (M::kK + kBlock - 1) / kBlock - first;
    if constexpr (ablation::kNoProduct) {
      release();
    } else {
      total += chunk_product<M, S::kHasRowScales>(slot, from, input, blocks, offset, c.lane, release);
    }
    if (++column == M::kChunks) {
      flush();
      column = 0, ++group;
      if ((group - begin) % 4 == 0) fetch_scales(group);
    }
  }
  if (column != 0 && lo < hi) flush();
}

}  // namespace amk
