// split_partial[query head, split] = merge of the agents' partials; query head g is done by agent g mod n.
//
// Threads: a lane takes head_dim / 32 outputs. Reads shared partial (f32); writes global split_partial (f32 hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void merge(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kWidth = kDim + 4, kGroup = P::kHeads / P::kKvHeads, kFrom = S::kAttendAgents;
  const int head = P::attn_head(c.worker), split = P::attn_split(c.worker), agent = c.warp - S::kFirst;
  const int active = c.pos / P::kKvBlock + 1;
  if (head < 0 || split >= active) return;
  const auto to = S::split_partial(c);
  for (int g = agent; g < kGroup; g += S::kAgents) {
    const float* from = S::partial(c) + g * kWidth;
    float peak = from[kDim];
#pragma unroll
    for (int a = 1; a < kFrom; ++a) peak = fmaxf(peak, from[a * kGroup * kWidth + kDim]);
    float scale[kFrom], total = 0.f;
#pragma unroll
    for (int a = 0; a < kFrom; ++a) {
      scale[a] = __expf(from[a * kGroup * kWidth + kDim] - peak);
      total += from[a * kGroup * kWidth + kDim + 1] * scale[a];
    }
    const int row = ((head * kGroup + g) * P::kKvSplits + split) * kWidth;
    for (int d = c.lane; d < kDim; d += 32) {
      float sum = 0.f;
#pragma unroll
      for (int a = 0; a < kFrom; ++a) sum += from[a * kGroup * kWidth + d] * scale[a];
      to.store(c, row + d, sum);
    }
    if (c.lane < 2) to.store(c, row + kDim + c.lane, c.lane == 0 ? peak : total);
  }
}

}  // namespace amk::ops
