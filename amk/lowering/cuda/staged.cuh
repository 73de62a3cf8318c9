// The vector that a product reads, in shared memory: how the ops that stage it share it out and write it, in the layouts of
// vector_layouts.cuh.
#pragma once
#include "amk/fetches.cuh"
#include "amk/vector_layouts.cuh"

namespace amk {

// Where share `index` of a staged vector begins: staged_share() of the schedule's ops.
template <int kCount, bool kBlocks>
__device__ __forceinline__ int staged_begin(int parts, int index) {
  if constexpr (kBlocks) {
    return min(share_begin((kCount + kBlock - 1) / kBlock, parts, index) * kBlock, kCount);
  } else {
    return share_begin(kCount, parts, index);
  }
}

// The most elements of one of kParts shares.
template <int kCount, bool kBlocks, int kParts>
inline constexpr int kStagedMost =
    kBlocks ? ((kCount + kBlock - 1) / kBlock + kParts - 1) / kParts * kBlock : kCount / kParts;

// The fewest elements of one of kParts shares; the last block of all may be cut short.
template <int kCount, bool kBlocks, int kParts>
__device__ constexpr int staged_least() {
  if constexpr (!kBlocks) return kCount / kParts;
  constexpr int kAll = (kCount + kBlock - 1) / kBlock, kShort = kAll * kBlock - kCount;
  return kAll < kParts ? 0 : kAll / kParts * kBlock - kShort;
}

// The lane's kPieces pieces of x, from `from` on, in the layouts that the step S names: piece k is the kWide elements from
// from + (k * 32 + lane) * kWide on, values(k, v) gives them, top(k) their magnitudes, largest(k, top) the larger of these and
// top. The agent's share ends at hi, and has at least kLeast elements where the pieces are all of it. Where the layouts have
// blocks, `from` begins one, all lanes call, and v is zero from hi on; kScaleBlocks blocks from `from` on share a scale.
// meanwhile() is called while the scales are sought. What is done for every piece is done for all of them before the next: else
// each waits for its own.
template <class S, int kWide, int kPieces, int kLeast, int kScaleBlocks = 1, class C, class Values, class Top, class Largest,
          class Meanwhile>
__device__ __forceinline__ void put_share(const C& c, int from, int hi, Values values, Top top, Largest largest,
                                          Meanwhile meanwhile) {
  constexpr int kStride = 32 * kWide, kLanes = kBlock / kWide, kPairs = (kPieces + 1) / 2;
  const int base = from + c.lane * kWide, end = S::kHasScales ? (hi + kBlock - 1) / kBlock * kBlock : hi;
  if constexpr (ablation::kNoConversion && S::kHasScales) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if ((k + 1) * kStride > kLeast && base + k * kStride >= end) continue;
      float v[kWide];
      values(k, v);
      *reinterpret_cast<u32*>(S::x(c) + k * kStride + base) = __float_as_uint(v[0]);
    }
    meanwhile();
    return;
  }
  constexpr int kRun = kScaleBlocks * kBlock / kStride, kRuns = kRun == 0 ? 0 : (kPieces + kRun - 1) / kRun;
  u32 tops[kPairs] = {};
  BlockScale of_run[kRuns == 0 ? 1 : kRuns];
  if constexpr (S::kHasScales && kScaleBlocks > 1) {
    static_assert(kRun * kStride == kScaleBlocks * kBlock && kScaleBlocks <= 32, "whole pieces, a block a lane");
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      u32 pair = 0;
#pragma unroll
      for (int k = run * kRun; k < kPieces && k < (run + 1) * kRun; ++k) pair = largest(k, pair);
      // As integers: not a number is larger than all numbers.
      of_run[run] = BlockScale(__reduce_max_sync(0xffffffffu, max(pair & 0xffffu, pair >> 16)) << 16);
      const int block = from / kBlock + run * kScaleBlocks + c.lane;
      if (c.lane < kScaleBlocks && block * kBlock < end) S::scales(c)[block] = of_run[run].down();
    }
  } else if constexpr (S::kHasScales) {
    static_assert(kPieces <= kLanes, "a lane for each piece of a block");
#pragma unroll
    for (int k = 0; k < kPieces; k += 2) {
      const u32 first = top(k), second = k + 1 < kPieces ? top(k + 1) : 0;
      tops[k / 2] = larger_pair(__byte_perm(first, second, 0x5410u), __byte_perm(first, second, 0x7632u));
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k) tops[k] = larger_pair(tops[k], __shfl_xor_sync(0xffffffffu, tops[k], offset));
    }
    // Lane n of a block's lanes has the scale of piece n.
    const int piece = c.lane % kLanes, block = from / kBlock + piece * (32 / kLanes) + c.lane / kLanes;
    u32 own = 0;
    // Opaque: otherwise the compiler stores all of them, to load one.
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const u32 top = sync::opaque(tops[k]);
      own = piece / 2 == k ? top : own;
    }
    if (piece < kPieces && block * kBlock < end) S::scales(c)[block] = BlockScale(piece % 2 == 0 ? own << 16 : own).down();
  }
  meanwhile();
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    if ((k + 1) * kStride > kLeast && base + k * kStride >= end) continue;
    float v[kWide];
    values(k, v);
    float up = 1.f;
    if constexpr (S::kHasScales && kScaleBlocks > 1) {
      up = of_run[k / kRun].up();
    } else if constexpr (S::kHasScales) {
      up = BlockScale(k % 2 == 0 ? tops[k / 2] << 16 : tops[k / 2]).up();
    }
    write_block(S::x(c) + k * kStride, base, v, up);
    if constexpr (S::kHasAlso) write_block(S::also(c) + k * kStride, base, v, up);
  }
  if constexpr (S::kHasSums) {
    sync::warp_barrier();
    constexpr int kBlocks = kPieces * kStride / kBlock;
    const int block = from / kBlock, blocks = min(end / kBlock - block, kBlocks);
    const float* scales = S::scales(c) + block;
    float* sums = S::sums(c) + block;
    sum_blocks<kBlocks>(S::x(c) + from, scales, sums, blocks, c.lane);
    if constexpr (S::kHasAlso) sum_blocks<kBlocks>(S::also(c) + from, scales, sums, blocks, c.lane);
  }
}

// The same of pieces in registers.
template <class S, int kWide, int kPieces, int kLeast, int kScaleBlocks = 1, class C, class Meanwhile>
__device__ __forceinline__ void put_share(const C& c, int from, int hi, const float (&v)[kPieces][kWide], Meanwhile meanwhile) {
  const auto values = [&](int piece, float(&out)[kWide]) {
#pragma unroll
    for (int k = 0; k < kWide; ++k) out[k] = v[piece][k];
  };
  const auto top = [&](int piece) { return magnitudes(v[piece]); };
  const auto largest = [&](int piece, u32 top) { return largest_of(top, v[piece]); };
  put_share<S, kWide, kPieces, kLeast, kScaleBlocks>(c, from, hi, values, top, largest, meanwhile);
}

template <class S, int kWide, int kPieces, int kLeast, class C>
__device__ __forceinline__ void put_share(const C& c, int from, int hi, const float (&v)[kPieces][kWide]) {
  put_share<S, kWide, kPieces, kLeast>(c, from, hi, v, [] {});
}

// x[i .. i + kWide) <- the pairs of a fetch, bf16.
template <class Cell>
__device__ __forceinline__ void write_pairs(bf16* x, int i, const typename Cell::Raw& raw) {
  u32 pairs[Cell::kWide / 2];
  Cell::pairs(raw, pairs);
#pragma unroll
  for (int k = 0; k < Cell::kWide / 2; ++k) *reinterpret_cast<u32*>(x + x_place(i + 2 * k)) = pairs[k];
}

constexpr int kTogether = 8;  // fetches of a lane that are used as one

// Fetches of a lane that are used as soon as they are fresh: half of many, or more, whole runs with one scale. What they are
// stored over must not depend on the other words: all warps have met since it was used (S::kMet).
template <class S, class Batch, class Cell>
__device__ constexpr int group_of() {
  constexpr bool kHalves = Cell::kTagged && S::kHasScales && S::kMet && Batch::kOnce;
  constexpr int kAll = Batch::kPieces, kRun = S::kScaleBlocks * kBlock / Batch::kStride;
  if constexpr (!kHalves || kAll <= kTogether) return kAll;
  if constexpr (S::kScaleBlocks == 1) return kAll % 2 == 0 ? kAll / 2 : kAll;
  constexpr int kHalf = (kAll / 2 + kRun - 1) / (kRun == 0 ? 1 : kRun) * kRun;
  return kHalf < kAll ? kHalf : kAll;
}

// Puts a group of fetches, from fetch kFirst on, of the share [lo, hi).
template <class S, class Batch, int kGroup, class Cell, class C>
struct PutGroup {
  const C& c;
  const Cell& cell;
  int lo, hi;

  template <int kFirst>
  __device__ __forceinline__ void operator()(Known<kFirst>, const Batch& batch) const {
    constexpr int kWide = Cell::kWide, kLeft = Batch::kPieces - kFirst, kPieces = kGroup < kLeft ? kGroup : kLeft;
    constexpr int kSure = Batch::kSure >= Batch::kAll ? kPieces * Batch::kStride : 0;
    const auto values = [&](int k, float(&v)[kWide]) { cell.values(batch.raw[0][kFirst + k], v); };
    const auto top = [&](int k) { return cell.top(batch.raw[0][kFirst + k]); };
    const auto largest = [&](int k, u32 top) { return cell.largest(top, batch.raw[0][kFirst + k]); };
    put_share<S, kWide, kPieces, kSure, S::kScaleBlocks>(c, lo + kFirst * Batch::kStride, hi, values, top, largest, [] {});
  }
};

// x = the agent's contiguous share of kCount elements of `cell`.
template <class S, int kCount, class Cell, class C>
__device__ __forceinline__ void stage_share(const C& c, const Cell& cell) {
  constexpr bool kBlocks = S::kHasScales;
  constexpr int kMost = kStagedMost<kCount, kBlocks, S::kAgents>, kWide = Cell::kWide;
  using Batch = Fetched<kMost, staged_least<kCount, kBlocks, S::kAgents>(), 1, true, Cell>;
  static_assert(kCount % kWide == 0 && (kBlocks || kCount % (kWide * S::kAgents) == 0), "shares are whole fetches");
  const int agent = c.warp - S::kFirst;
  const int lo = staged_begin<kCount, kBlocks>(S::kAgents, agent), hi = staged_begin<kCount, kBlocks>(S::kAgents, agent + 1);
  constexpr int kGroup = group_of<S, Batch, Cell>();
  if constexpr (kGroup < Batch::kPieces) {
    for_each_group<Batch, kGroup>(c, cell, lo, hi, PutGroup<S, Batch, kGroup, Cell, C>{c, cell, lo, hi});
    return;
  }
  for_each_batch<Batch, 0>(c, cell, 1, lo, hi, [&](const Batch& batch) {
    if constexpr (kBlocks) {
      const auto values = [&](int k, float(&v)[kWide]) { cell.values(batch.raw[0][k], v); };
      const auto top = [&](int k) { return cell.top(batch.raw[0][k]); };
      const auto largest = [&](int k, u32 top) { return cell.largest(top, batch.raw[0][k]); };
      put_share<S, kWide, Batch::kPieces, Batch::kSure, S::kScaleBlocks>(c, batch.base - c.lane * kWide, hi, values, top, largest, [] {});
    } else {
#pragma unroll
      for (int k = 0; k < Batch::kPieces; ++k) {
        if (batch.live(0, k)) write_pairs<Cell>(S::x(c) + k * Batch::kStride, batch.base, batch.raw[0][k]);
      }
    }
  });
}

// The same in bf16 for each sequence of a batch; the sequences' rows are kApart elements of the cell apart.
template <class S, int kCount, int kBatch, int kApart, class Cell, class C>
__device__ __forceinline__ void stage_rows(const C& c, const Cell& cell) {
  constexpr int kMost = kCount / S::kAgents, kRows = rows_together<kMost, kBatch, Cell>();
  using Batch = Fetched<kMost, kMost, kRows, kBatch % kRows == 0, Cell>;
  static_assert(kCount % (Cell::kWide * S::kAgents) == 0 && !S::kHasScales && !S::kHasAlso, "bf16, in whole fetches");
  const int agent = c.warp - S::kFirst;
  const int lo = share_begin(kCount, S::kAgents, agent), hi = share_begin(kCount, S::kAgents, agent + 1);
#pragma unroll 1
  for (int s = 0; s < kBatch; s += kRows) {
    bf16* x = S::x(c) + s * S::kXRow;
    for_each_batch<Batch, kApart>(c, cell.from(s * kApart), kBatch - s, lo, hi, [&](const Batch& batch) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int k = 0; k < Batch::kPieces; ++k) {
          // Pieces are whole runs apart, so a lane's places are computed once.
          if (batch.live(row, k)) write_pairs<Cell>(x + row * S::kXRow + k * Batch::kStride, batch.base, batch.raw[row][k]);
        }
      }
    });
  }
}

}  // namespace amk
