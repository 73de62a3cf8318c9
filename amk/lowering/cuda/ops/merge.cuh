// split_partial[query head, split] = merge of the agents' partials; query head g is done by agent g mod n. In a step of several
// rows, query heads are the query vectors of all rows.
//
// Threads: a lane takes head_dim / 32 outputs. Reads shared partial (f32); writes global split_partial, split_scale (hand-offs).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void merge(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kWidth = kDim + 4, kGroup = P::kRows * (P::kHeads / P::kKvHeads);
  constexpr int kFrom = S::kSharers;
  const int head = c.shares.attn_head, split = c.shares.attn_split, agent = c.warp - S::kFirst;
  const int active = (c.pos + P::kRows - 1) / P::kKvBlock + 1;
  if (head < 0 || split >= active) return;
  const auto to = S::split_partial(c);
  const auto scales = S::split_scale(c);
  for (int g = agent; g < kGroup; g += S::kAgents) {
    const float* from = S::partial(c) + g * kWidth;
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

}  // namespace amk::ops
