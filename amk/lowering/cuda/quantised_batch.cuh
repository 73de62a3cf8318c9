// The product of gemv for weights that are codes with scales, with several sequences.
//
// Threads, shared memory and the slots of part as in gemv, x in bf16 as there; chunks as in quantised_gemv. A lane makes the 16
// codes that it has of a block's row bf16 numbers, exactly; the tensor cores sum the blocks that share a scale from zero, in fp32,
// and the lane that has a row's sum scales it and adds it up. How often a code is made a number does not depend on the sequences.
#pragma once
#include "amk/quantised_gemv.cuh"

namespace amk {

// A lane's 16 bytes of x at `address`; zero behind the last column of the matrix.
template <bool kWhole>
__device__ __forceinline__ uint4 run_of_x(u32 address, bool live) {
  if constexpr (kWhole) return sync::load_shared_v4(address);
  uint4 run = {};
  sync::load_shared_if(live, run, address);
  return run;
}

// Up to 8 sequences. The weights are the operand of 16 rows: a lane's first eight columns in row r, the last eight in row r + 8; the
// other one has x of the former in its even columns, of the latter in its odd ones, as in gemv.
template <class S, int kBatch>
struct FewSequences {
  // kRows: rows of weights that a lane has sums of, kOwn: sums of a tile of sequences.
  static constexpr int kTiles = (kBatch + 3) / 4, kRows = 1, kOwn = 1;
  using Sums = float[kTiles][4];
  u32 x[kTiles];
  int column;
  template <class C>
  __device__ __forceinline__ explicit FewSequences(const C& c) : column(c.lane % 4 * 16 + c.lane / 4 % 2 * 8) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int s = min(t * 4 + c.lane / 8, kBatch - 1);
      x[t] = sync::opaque(sync::shared_address(S::x(c)) + (s * S::kXRow + column) * 2);
    }
  }
  static __device__ __forceinline__ int row(int lane) { return lane / 4; }
  static __device__ __forceinline__ int sequence(int tile, int, int lane) { return tile * 4 + lane % 4; }
  static __device__ __forceinline__ float own(const Sums& sums, int tile, int) { return sums[tile][0] + sums[tile][3]; }
  // sums += w * x of a block that begins `at` bytes behind the first; left: columns of the matrix from there on.
  template <bool kWhole>
  __device__ __forceinline__ void add(Sums& sums, const u32 (&w)[8], u32 at, int left) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // In the order of x_place: the second pair stands third.
      const uint4 v = run_of_x<kWhole>(x[t] + at, column < left);
      mma_16(sums[t], w[0], w[4], w[1], w[5], v.x, v.z);
      mma_16(sums[t], w[2], w[6], w[3], w[7], v.y, v.w);
    }
  }
};

// More: x is the operand of 16 rows, a sequence each, and the weights are the other one.
template <class S, int kBatch>
struct ManySequences {
  static constexpr int kTiles = (kBatch + 15) / 16, kRows = 2, kOwn = 4;
  using Sums = float[kTiles][2][4];
  u32 x[kTiles][2];
  int column;
  template <class C>
  __device__ __forceinline__ explicit ManySequences(const C& c) : column(c.lane % 4 * 16) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int s = min(t * 16 + h * 8 + c.lane / 4, kBatch - 1);
        x[t][h] = sync::opaque(sync::shared_address(S::x(c)) + (s * S::kXRow + column) * 2);
      }
    }
  }
  static __device__ __forceinline__ int row(int lane) { return lane % 4 * 2; }
  static __device__ __forceinline__ int sequence(int tile, int n, int lane) { return tile * 16 + n / 2 * 8 + lane / 4; }
  static __device__ __forceinline__ float own(const Sums& sums, int tile, int n) { return sums[tile][0][n] + sums[tile][1][n]; }
  template <bool kWhole>
  __device__ __forceinline__ void add(Sums& sums, const u32 (&w)[8], u32 at, int left) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool live = column + half * 8 < left;
        const uint4 a = run_of_x<kWhole>(x[t][0] + at + half * 16, live), b = run_of_x<kWhole>(x[t][1] + at + half * 16, live);
        mma_16(sums[t][0], a.x, b.x, a.z, b.z, w[4 * half], w[4 * half + 1]);
        mma_16(sums[t][1], a.y, b.y, a.w, b.w, w[4 * half + 2], w[4 * half + 3]);
      }
    }
  }
};

// total += one chunk's product with x, whose columns begin at byte `at`; left: columns of the matrix from there on. release()
// gives the slot back.
template <class M, bool kWhole, bool kApart, class Part, class Release>
__device__ __forceinline__ void chunk_products(u32 slot, const Part& part, float (&total)[Part::kTiles][Part::kOwn], u32 at, int left,
                                               int lane, Release release) {
  using W = typename M::Weights;
  constexpr int kBlocks = M::kColumns / kBlock, kEach = W::kGroup / kBlock, kGroups = kBlocks / kEach;
  const u32 behind = slot + kBlocks / W::kBlocks * 512;
  uint4 v[kBlocks / W::kBlocks];
  float scale[Part::kRows * kGroups];
  u32 zero[kGroups];
#pragma unroll
  for (int i = 0; i < kBlocks / W::kBlocks; ++i) v[i] = sync::load_shared_v4(slot + lane * 16 + i * 512);
  if constexpr (!kApart) load_scales(behind + Part::row(lane) * (2 * kGroups), scale);
  if constexpr (W::kZeros) load_zeros(behind + 16 * kGroups + lane / 4 * kGroups, zero);
  release();
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    typename Part::Sums sums = {};
#pragma unroll
    for (int i = group * kEach; i < (group + 1) * kEach; ++i) {
      u32 w[8];
      W::pairs(v[i / W::kBlocks], i % W::kBlocks, W::kZeros ? zero[group] : W::kMiddle, w);
      part.template add<kWhole>(sums, w, at + i * (2 * kBlock), left - i * kBlock);
    }
#pragma unroll
    for (int t = 0; t < Part::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < Part::kOwn; ++n) {
        const float y = Part::own(sums, t, n);
        total[t][n] = kApart ? total[t][n] + y : fmaf(scale[n % Part::kRows * kGroups + group], y, total[t][n]);
      }
    }
  }
}

template <class S, class Part, class C>
__device__ __forceinline__ void batch_of_codes(C& c) {
  using M = typename S::Matrix;
  constexpr int kBatch = C::P::kBatch, kChunks = M::kChunks / S::kCut, kGroups = (M::kRows + 7) / 8;
  constexpr bool kWhole = M::kK % (M::kColumns * S::kCut) == 0;
  static_assert(S::kCut == 1 || kWhole, "parts are whole chunks");
  static_assert(S::kXRow % 8 == 0 && M::kK % 8 == 0, "whole 16 bytes");
  const int agent = c.warp - S::kFirst, chunks = M::count(c) * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  const Part x(c);
  float* part = S::part(c) + agent * (8 * kBatch) + Part::row(c.lane);
  const int begin = lo / kChunks;
  int group = begin, column = lo % kChunks;
  float total[Part::kTiles][Part::kOwn] = {}, row_scales = 1.f;
  // Lane 8 i + r: the scale of row r of the i-th of four groups.
  const auto fetch_scales = [&](int first) {
    if constexpr (S::kHasRowScales) {
      const int at = (S::layer(c) * kGroups + M::first(c) + first) * 8 + c.lane;
      if ((first + c.lane / 8) * kChunks < hi) row_scales = sync::load_constant(S::row_scales(c).data + at);
    }
  };
  const auto flush = [&] {
    float scale[Part::kRows];
#pragma unroll
    for (int r = 0; r < Part::kRows; ++r) {
      scale[r] = 1.f;
      if constexpr (S::kHasRowScales) {
        scale[r] = __shfl_sync(0xffffffffu, row_scales, (group - begin) % 4 * 8 + Part::row(c.lane) + r);
      }
    }
#pragma unroll
    for (int t = 0; t < Part::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < Part::kOwn; ++n) {
        const int s = Part::sequence(t, n, c.lane);
        float* to = part + (group * kBatch + s) * 8 + n % Part::kRows;
        const float y = total[t][n];
        total[t][n] = 0.f;
        if (s >= kBatch) continue;
        *to = S::adds(c) ? fmaf(y, scale[n % Part::kRows], *to) : y * scale[n % Part::kRows];
      }
    }
  };
  if (lo < hi) fetch_scales(begin);
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const u32 slot = c.ring.wait(c.dog, c.warp);
    const int first = column * M::kColumns;
    const auto release = [&] { c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1); };
    if constexpr (ablation::kNoProduct) {
      release();
    } else {
      chunk_products<M, kWhole, S::kHasRowScales>(slot, x, total, first * 2, M::kK - first, c.lane, release);
    }
    if (++column == kChunks) {
      flush();
      column = 0, ++group;
      if ((group - begin) % 4 == 0) fetch_scales(group);
    }
  }
  if (column != 0 && lo < hi) flush();
}

template <class S, class C>
__device__ __forceinline__ void quantised_batch(C& c) {
  if constexpr (C::P::kBatch > 8) {
    batch_of_codes<S, ManySequences<S, C::P::kBatch>>(c);
  } else {
    batch_of_codes<S, FewSequences<S, C::P::kBatch>>(c);
  }
}

}  // namespace amk
