// attn[i] = attention output i of the worker's slice: the active splits of its head combined.
//
// Threads: a warp, or several that take pieces in turn. A lane takes 4 outputs of every kSubs-th split, all its loads in flight at once; the lanes of the same
// outputs then add up in a fixed tree. A slice of more than 128 outputs is done in pieces. Reads global split_partial,
// split_scale (hand-offs); writes global attn (hand-off).
#pragma once
#include "amk/cells.cuh"
#include "amk/turns.cuh"

namespace amk::ops {

// The greatest common divisor of three numbers.
__device__ constexpr int greatest_divisor(int a, int b, int c) {
  int found = a < b ? a : b;
  while (a % found != 0 || b % found != 0 || c % found != 0) --found;
  return found;
}

template <class S, class C>
__device__ __forceinline__ void reduce_splits_of(C& c, const ServedHead& at) {
  using P = typename C::P;
  const auto from = S::split_partial(c);
  const auto scales = S::split_scale(c);
  using From = decltype(from);
  using Scales = decltype(scales);
  constexpr int kDim = P::kHeadDim, kSplits = P::kKvSplits, kGroup = P::kHeads / P::kKvHeads;
  constexpr int kOutputs = P::kRows * kGroup * kDim;
  constexpr int kSlice = kOutputs / kSplits, kPiece = greatest_divisor(kSlice, kDim, 128), kWide = From::kWide;
  constexpr int kLanes = kPiece / kWide, kSubs = 32 / kLanes, kEach = (kSplits + kSubs - 1) / kSubs;
  // Where all lanes have outputs of the same head, lane e has the scale of split e, and gives its weight to the others.
  constexpr bool kShared = kSubs == 1 && kEach > 4 && kEach <= 32;
  static_assert(kWide == 4 && kLanes > 0, "four outputs a lane");
  static_assert(kOutputs % kSplits == 0 && kPiece % kWide == 0, "slices are whole pieces, each in one head");
  // Of one turn the share itself: a copy of it is another order of sums to the compiler, and so another kernel.
  const auto head = [&] { return P::turns() == 1 ? c.shares.attn_head : at.head; };
  if (head() < 0) return;
  const int blocks = (c.pos + P::kRows - 1) / P::kKvBlock + 1, active = blocks < kSplits ? blocks : kSplits;
  const int sub = c.lane / kLanes;
  constexpr int kAgents = of_turn<P>(S::kAgents);
  const int from_piece = S::kAgents == 1 ? 0 : at.agent * kPiece;
#pragma unroll 1
  for (int piece = from_piece; piece < kSlice; piece += kAgents * kPiece) {
    const int first = head() * kOutputs + c.shares.attn_split * kSlice + piece + c.lane % kLanes * kWide;
    const int row = first / kDim * kSplits + sub;
    const auto mine = from.from(row * kDim + first % kDim);
    const auto my_scales = scales.from(row * 2);
    typename From::Raw raw[kEach];
    typename Scales::Two scale[kShared ? 1 : kEach];
    until_fresh(c, from.tag, [&] {
      bool fresh = true;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        raw[e] = {};
        if (sub + e * kSubs < active) raw[e] = mine.fetch(e * kSubs * kDim);
      }
#pragma unroll
      for (int e = 0; e < (kShared ? 1 : kEach); ++e) {
        scale[e] = {};
        const int split = kShared ? c.lane : sub + e * kSubs;
        if (split < active) scale[e] = my_scales.fetch_two((kShared ? c.lane : e * kSubs) * 2);
        if (split < active) fresh &= scales.fresh_two(scale[e]);
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (sub + e * kSubs < active) fresh &= from.fresh(raw[e]);
      }
      return fresh;
    });
    float peak = -3.0e38f, total = 0.f, sum[kWide] = {};
#pragma unroll
    for (int e = 0; e < (kShared ? 1 : kEach); ++e) {
      if ((kShared ? c.lane : sub + e * kSubs) < active) peak = fmaxf(peak, scales.value_two(scale[e]).x);
    }
#pragma unroll
    for (int offset = kShared ? 1 : kLanes; offset < 32; offset *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
    float2 given = {};  // of lane e, the total and the weight of split e
    if constexpr (kShared) {
      given = scales.value_two(scale[0]);
      given = c.lane < active ? make_float2(given.y, __expf(given.x - peak)) : float2{};
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      // Of several rows without a branch: a split that is not active is zero, and counts for nothing. The exponentials overlap.
      const bool live = sub + e * kSubs < active;
      if (P::kRows == 1 && !live) continue;
      float y, w;
      if constexpr (kShared) {
        y = __shfl_sync(0xffffffffu, given.x, e), w = __shfl_sync(0xffffffffu, given.y, e);
      } else {
        const float2 part = scales.value_two(scale[e]);
        y = part.y, w = live ? __expf(part.x - peak) : 0.f;
      }
      float v[kWide];
      from.values(raw[e], v);
      total = fmaf(y, w, total);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] = fmaf(v[j], w, sum[j]);
    }
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, offset);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
    }
    const float inverse = __fdividef(1.f, total);
#pragma unroll
    for (int j = 0; j < kWide; ++j) sum[j] *= inverse;
    int to = first;
    if constexpr (P::kRows > 1) {
      const int own = first - head() * kOutputs, vector = own / kDim;
      to = vector / kGroup * S::kAttnRow + (head() * kGroup + vector % kGroup) * kDim + own % kDim;
    }
    if (sub == 0) S::attn(c).store_wide(to, sum);
  }
}

template <class S, class C>
__device__ __forceinline__ void reduce_splits(C& c) {
  for_each_head<S>(c, [&](const ServedHead& at) { reduce_splits_of<S>(c, at); });
}

}  // namespace amk::ops
