// x[i] = attention output i: the active splits of its head combined in index order.
//
// Threads: each warp its contiguous share of the q_dim outputs, 16 bytes of each split a lane. The loads of kBatch splits of
// all its outputs and of all its scales are in flight at once, a (head, split) pair a lane for the scales. Reads global
// split_partial, split_scale (hand-offs); writes shared x, scales, sums as vector_layouts.cuh has it, and mix (f32 pairs, private to
// the warp): the weight of each of the share's pairs.
#pragma once
#include "amk/staged.cuh"

namespace amk::ops {

// mix[pair].x <- exp(peak - largest peak of the head) / sum of weights, for the pairs this lane holds.
template <int kSplits, int kPairs>
__device__ __forceinline__ void normalise(float2* mix, int lane, int live, int active) {
  constexpr int kEach = (kPairs + 31) / 32;
  float weight[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int pair = lane + 32 * j, head = pair / kSplits;
    if (pair >= live || pair % kSplits >= active) continue;
    float peak = -3.0e38f, total = 0.f;
    for (int s = 0; s < active; ++s) peak = fmaxf(peak, mix[head * kSplits + s].x);
    for (int s = 0; s < active; ++s) {
      const float2 part = mix[head * kSplits + s];
      total = fmaf(part.y, __expf(part.x - peak), total);
    }
    weight[j] = __fdividef(__expf(mix[pair].x - peak), total);
  }
  sync::warp_barrier();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int pair = lane + 32 * j;
    if (pair < live && pair % kSplits < active) mix[pair].x = weight[j];
  }
  sync::warp_barrier();
}

template <class S, class C>
__device__ __forceinline__ void combine(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  const auto from = S::split_partial(c);
  const auto scales = S::split_scale(c);
  using From = decltype(from);
  using Scales = decltype(scales);
  static_assert(P::kBatch == 1, "in a batch splits are reduced");
  constexpr int kDim = P::kHeadDim, kOutputs = P::kHeads * kDim, kWide = From::kWide, kStride = 32 * kWide;
  constexpr bool kBlocks = S::kHasScales;
  constexpr int kShare = kStagedMost<kOutputs, kBlocks, S::kAgents>, kAll = (kShare + kStride - 1) / kStride;
  // A lane takes several pieces of its share at once if they are whole heads apart.
  constexpr int kPieces = kStride % kDim != 0 ? 1 : kAll < 4 ? kAll : 4;
  constexpr int kLeast = kPieces == kAll ? staged_least<kOutputs, kBlocks, S::kAgents>() : 0;
  constexpr int kSplits = P::kKvSplits, kFit = 20 / kPieces, kBatch = kFit < kSplits ? kFit : kSplits;
  constexpr int kPairs = S::kHeads * kSplits, kScales = (kPairs + 31) / 32;
  static_assert(kDim % kWide == 0 && (kBlocks || kOutputs % (kWide * S::kAgents) == 0), "shares are whole fetches");
  // From one piece of a lane to its next, in rows of [heads, splits].
  constexpr int kRows = kStride / kDim * kSplits;
  const int agent = c.warp - S::kFirst;
  const int blocks = c.pos / P::kKvBlock + 1, active = blocks < kSplits ? blocks : kSplits;
  const int lo = staged_begin<kOutputs, kBlocks>(S::kAgents, agent), hi = staged_begin<kOutputs, kBlocks>(S::kAgents, agent + 1);
  if (kBlocks && lo == hi) return;
  const int first_row = lo / kDim * kSplits, live = (hi - 1) / kDim * kSplits + active - first_row;
  const auto my_scales = scales.from((first_row + c.lane) * 2);
  float2* mix = reinterpret_cast<float2*>(S::mix(c)) + agent * kPairs;
  bool normal = false;
#pragma unroll 1
  for (int base = lo + c.lane * kWide; base - (kBlocks ? c.lane * kWide : 0) < hi || !normal; base += kPieces * kStride) {
    const int row = base / kDim * kSplits;
    float sum[kPieces][kWide] = {};
#pragma unroll 1
    for (int s = 0; s < active; s += kBatch) {
      const auto mine = from.from((row + s) * kDim + base % kDim);
      typename From::Raw raw[kPieces][kBatch];
      typename Scales::Two scale[kScales];
      until_fresh(c, from.tag, [&] {
        bool fresh = true;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            raw[piece][k] = typename From::Raw{};
            if (base + piece * kStride < hi && s + k < active) raw[piece][k] = mine.fetch((piece * kRows + k) * kDim);
          }
        }
        if (!normal) {
#pragma unroll
          for (int j = 0; j < kScales; ++j) {
            const int pair = c.lane + 32 * j;
            scale[j] = typename Scales::Two{};
            if (pair < live && pair % kSplits < active) scale[j] = my_scales.fetch_two(64 * j);
          }
#pragma unroll
          for (int j = 0; j < kScales; ++j) {
            const int pair = c.lane + 32 * j;
            if (pair >= live || pair % kSplits >= active) continue;
            fresh = fresh && scales.fresh_two(scale[j]);
          }
        }
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            if (base + piece * kStride >= hi || s + k >= active) continue;
            fresh = fresh && from.fresh(raw[piece][k]);
          }
        }
        return fresh;
      });
      if (!normal) {
#pragma unroll
        for (int j = 0; j < kScales; ++j) {
          const int pair = c.lane + 32 * j;
          if (pair < live && pair % kSplits < active) mix[pair] = scales.value_two(scale[j]);
        }
        sync::warp_barrier();
        normalise<kSplits, kPairs>(mix, c.lane, live, active);
        normal = true;
      }
      const float2* weights = mix + row - first_row + s;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (base + piece * kStride >= hi || s + k >= active) continue;
          float v[kWide];
          from.values(raw[piece][k], v);
          const float w = weights[piece * kRows + k].x;
#pragma unroll
          for (int j = 0; j < kWide; ++j) sum[piece][j] = fmaf(v[j], w, sum[piece][j]);
        }
      }
    }
    put_share<S, kWide, kPieces, kLeast>(c, base - c.lane * kWide, hi, sum);
  }
}

}  // namespace amk::ops
