// The vector that a product reads, in shared memory: how the ops that stage it write it.
//
// bf16: in the order of x_place. For weights that are codes, 16-bit numbers in blocks of 64 elements, in order, that share a
// power of two: x = number * scales[block], and sums[block] = sum of x where the weights have an offset. `digits`: the
// number n, |n| < 32640, is 256 high + low, two signed bytes: 64 low ones, then 64 high ones. __half: the number rounded to 11
// bits. A block whose largest element is below 2^-112 is rounded to multiples of 2^-126; one with an element that is not
// finite, or as large as 2^127, has a scale that is not a number.
#pragma once
#include <cuda_fp16.h>

#include "amk/cells.cuh"

namespace amk {

struct digits {
  unsigned char high_and_low[2];
};

inline constexpr int kBlock = 64;

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

// The largest of the kLanes neighbours' values, kLanes 16 or 32, or their sum; called by all lanes.
template <int kLanes>
__device__ __forceinline__ u32 block_max(u32 v, int lane) {
  if constexpr (kLanes == 32) {
    return __reduce_max_sync(0xffffffffu, v);
  } else {
    const u32 low = __reduce_max_sync(0xffffffffu, lane < 16 ? v : 0), high = __reduce_max_sync(0xffffffffu, lane < 16 ? 0 : v);
    return lane < 16 ? low : high;
  }
}
template <int kLanes>
__device__ __forceinline__ int block_sum(int v, int lane) {
  if constexpr (kLanes == 32) {
    return __reduce_add_sync(0xffffffffu, v);
  } else {
    const int low = __reduce_add_sync(0xffffffffu, lane < 16 ? v : 0), high = __reduce_add_sync(0xffffffffu, lane < 16 ? 0 : v);
    return lane < 16 ? low : high;
  }
}

// 2^e, with which a block's elements are below 32512, and 2^-e: e from the bits of the largest magnitude.
struct BlockScale {
  float up, down;
  __device__ __forceinline__ explicit BlockScale(u32 top) {
    const u32 exponent = min(max((top + 0x20000u) >> 23, 15u), 255u);
    up = __uint_as_float((268u - exponent) << 23);
    down = exponent == 255u ? __uint_as_float(0x7fffffffu) : __uint_as_float((exponent - 14u) << 23);
  }
};

// 1.5 * 2^23: a float this large has its integer part in its low bits, also a negative one.
inline constexpr float kInteger = 12582912.f;
inline constexpr u32 kIntegerBits = 0x4b400000u;

// n + 128 in the low bits, of the nearest integer n to v: byte 1 is the high digit, byte 0 the low one with its top bit flipped.
__device__ __forceinline__ u32 digit_bits(float v, float up) { return __float_as_uint(fmaf(v, up, kInteger + 128.f)); }

template <int kWide>
__device__ __forceinline__ void write_block(digits* x, int i, const float (&v)[kWide], float up, bool live) {
  static_assert(kWide == 2 || kWide == 4, "pairs or quadruples");
  char* low = reinterpret_cast<char*>(x) + (i / kBlock * (2 * kBlock) + i % kBlock);
  const u32 first = __byte_perm(digit_bits(v[0], up), digit_bits(v[1], up), 0x5140u);
  if constexpr (kWide == 2) {
    if (live) {
      *reinterpret_cast<unsigned short*>(low) = static_cast<unsigned short>(first ^ 0x8080u);
      *reinterpret_cast<unsigned short*>(low + kBlock) = static_cast<unsigned short>(first >> 16);
    }
  } else {
    const u32 second = __byte_perm(digit_bits(v[2], up), digit_bits(v[3], up), 0x5140u);
    if (live) {
      *reinterpret_cast<u32*>(low) = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
      *reinterpret_cast<u32*>(low + kBlock) = __byte_perm(first, second, 0x7632u);
    }
  }
}

template <int kWide>
__device__ __forceinline__ void write_block(__half* x, int i, const float (&v)[kWide], float up, bool live) {
  if (!live) return;
#pragma unroll
  for (int k = 0; k < kWide; k += 2) {
    *reinterpret_cast<__half2*>(x + i + k) = __floats2half2_rn(v[k] * up, v[k + 1] * up);
  }
}

template <int kWide>
__device__ __forceinline__ void write_block(bf16* x, int i, const float (&v)[kWide], float, bool live) {
  if (!live) return;
#pragma unroll
  for (int k = 0; k < kWide; k += 2) {
    *reinterpret_cast<u32*>(x + x_place(i + k)) = pack_bf16(v[k], v[k + 1]);
  }
}

// x[i .. i + kWide) <- v, in the layouts that the step S names. Where these have blocks, all lanes call, lane n at the
// first lane's i + n * kWide, which is a whole block, with zeros from the end of the vector on; `hi` ends the share.
template <class S, int kWide, class C>
__device__ __forceinline__ void put_staged(const C& c, int i, int hi, const float (&v)[kWide]) {
  float up = 1.f;
  bool live = true;
  if constexpr (S::kHasScales) {
    constexpr int kLanes = kBlock / kWide;
    u32 top = 0;
#pragma unroll
    for (int k = 0; k < kWide; ++k) top = max(top, __float_as_uint(v[k]) & 0x7fffffffu);
    const BlockScale scale(block_max<kLanes>(top, c.lane));
    up = scale.up;
    live = i < (hi + kBlock - 1) / kBlock * kBlock;
    const bool writer = live && c.lane % kLanes == 0;
    if (writer) S::scales(c)[i / kBlock] = scale.down;
    if constexpr (S::kHasSums) {
      int sum = 0;
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum += static_cast<int>(digit_bits(v[k], up) - kIntegerBits - 128u);
      sum = block_sum<kLanes>(sum, c.lane);
      if (writer) S::sums(c)[i / kBlock] = static_cast<float>(sum) * scale.down;
    }
  }
  write_block(S::x(c), i, v, up, live);
  if constexpr (S::kHasAlso) write_block(S::also(c), i, v, up, live);
}

// x = the agent's contiguous share of kCount elements of `cell`.
template <class S, int kCount, class Cell, class C>
__device__ __forceinline__ void stage_share(const C& c, const Cell& cell) {
  constexpr int kWide = Cell::kWide;
  static_assert(kCount % kWide == 0 && (S::kHasScales || kCount % (kWide * S::kAgents) == 0), "shares are whole fetches");
  const int agent = c.warp - S::kFirst;
  const int lo = staged_begin<kCount, S::kHasScales>(S::kAgents, agent);
  const int hi = staged_begin<kCount, S::kHasScales>(S::kAgents, agent + 1);
  for_each_wide<kStagedMost<kCount, S::kHasScales, S::kAgents>, S::kHasScales>(
      c, cell, lo, hi, [&](int i, int, float (&v)[kWide]) { put_staged<S>(c, i, hi, v); });
}

// The same in bf16 for each sequence of a batch; the sequences' rows are kApart elements of the cell apart.
template <class S, int kCount, int kBatch, int kApart, class Cell, class C>
__device__ __forceinline__ void stage_rows(const C& c, const Cell& cell) {
  constexpr int kWide = Cell::kWide, kMost = kCount / S::kAgents;
  constexpr int kRows = rows_together<kMost, kBatch, Cell>();
  static_assert(kCount % (kWide * S::kAgents) == 0 && !S::kHasScales && !S::kHasAlso, "bf16, in whole fetches");
  const int agent = c.warp - S::kFirst;
  const int lo = share_begin(kCount, S::kAgents, agent), hi = share_begin(kCount, S::kAgents, agent + 1);
#pragma unroll 1
  for (int s = 0; s < kBatch; s += kRows) {
    bf16* x = S::x(c) + s * S::kXRow;
    for_each_fetch<kMost, kRows, kApart, false, kWholeRows<kMost, kRows, kBatch, Cell>>(
        c, cell.from(s * kApart), kBatch - s, lo, hi, [&](int row, int i, int piece, const typename Cell::Raw& raw) {
          // Pieces are whole runs apart, so a lane's places are computed once.
          constexpr int kStride = 32 * kWide;
          bf16* to = x + row * S::kXRow + piece * kStride;
          u32 pairs[kWide / 2];
          Cell::pairs(raw, pairs);
#pragma unroll
          for (int k = 0; k < kWide / 2; ++k) *reinterpret_cast<u32*>(to + x_place(i - piece * kStride + 2 * k)) = pairs[k];
        });
  }
}

}  // namespace amk
