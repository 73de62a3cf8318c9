// split_partial[query head, split] = merge of the agents' partials; query head g is done by agent g mod n. In a step of several
// rows, query heads are the query vectors of all rows, and neighbouring ones may be one agent's.
//
// Threads: a lane takes head_dim / 32 outputs. Reads shared partial (f32); writes global split_partial, split_scale (hand-offs).
#pragma once
#include "amk/cells.cuh"
#include "amk/turns.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void merge_head(C& c, const ServedHead& at) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kWidth = kDim + 4, kGroup = P::kRows * (P::kHeads / P::kKvHeads);
  constexpr int kFrom = S::kSharers, kAgents = of_turn<P>(S::kAgents);
  const int head = at.head, split = c.shares.attn_split, agent = at.agent;
  const int active = (c.pos + P::kRows - 1) / P::kKvBlock + 1;
  if (head < 0 || split >= active) return;
  const auto to = S::split_partial(c);
  const auto scales = S::split_scale(c);
  using To = decltype(to);
  constexpr int kWide = To::kWide, kLanes = kDim / kWide;
  if constexpr (P::kRows > 1 && kFrom == 1 && kWide == 4 && kDim % kWide == 0 && 32 % kLanes == 0) {
    // Nothing is added up: each vector is scaled by exp(0). A lane has four outputs of one; several vectors are in flight.
    constexpr int kVectors = 32 / kLanes, kTogether = 4, kTurn = S::kAgents * kVectors;
    constexpr bool kWhole = kGroup % (kTogether * kTurn) == 0;
    const int own = c.lane / kLanes, d = c.lane % kLanes * kWide;
#pragma unroll 1
    for (int first = agent * kVectors + own; first - own < kGroup; first += kTogether * kTurn) {
      float4 v[kTogether];
      float2 scale[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        // Where there is none, one that the agent has.
        const float* from = S::partial(c) + (kWhole || first + t * kTurn < kGroup ? first + t * kTurn : first - own) * kWidth;
        v[t] = *reinterpret_cast<const float4*>(from + d), scale[t] = *reinterpret_cast<const float2*>(from + kDim);
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int g = first + t * kTurn, row = (head * kGroup + g) * P::kKvSplits + split;
        const bool live = kWhole || g < kGroup;
        const float one = __expf(scale[t].x - scale[t].x);
        const float out[kWide] = {fmaf(v[t].x, one, 0.f), fmaf(v[t].y, one, 0.f), fmaf(v[t].z, one, 0.f), fmaf(v[t].w, one, 0.f)};
        const float total = fmaf(scale[t].y, one, 0.f);
        if (live) to.store_wide(row * kDim + d, out);
        scales.store(c, row * 2 + d / kWide, d == 0 ? scale[t].x : total, live && d < 2 * kWide);
      }
    }
    return;
  }
  for (int g = agent; g < kGroup; g += kAgents) {
    const float* from = S::partial(c) + (at.turn * kFrom * kGroup + g) * kWidth;
    float peak = from[kDim];
#pragma unroll
    for (int a = 1; a < kFrom; ++a) peak = fmaxf(peak, from[a * kGroup * kWidth + kDim]);
    float scale[kFrom], total = 0.f;
#pragma unroll
    for (int a = 0; a < kFrom; ++a) {
      scale[a] = __expf(from[a * kGroup * kWidth + kDim] - peak);
      total = fmaf(from[a * kGroup * kWidth + kDim + 1], scale[a], total);
    }
    const int row = (head * kGroup + g) * P::kKvSplits + split;
    for (int first = 0; first < kDim; first += 32) {
      const int d = first + c.lane;
      float sum = 0.f;
#pragma unroll
      for (int a = 0; a < kFrom; ++a) sum = d < kDim ? fmaf(from[a * kGroup * kWidth + d], scale[a], sum) : 0.f;
      to.store(c, row * kDim + d, sum, d < kDim);
    }
    scales.store(c, row * 2 + c.lane, c.lane == 0 ? peak : total, c.lane < 2);
  }
}

template <class S, class C>
__device__ __forceinline__ void merge(C& c) {
  for_each_head<S>(c, [&](const ServedHead& at) { merge_head<S>(c, at); });
}

}  // namespace amk::ops
