// x[i] = attention output i: the active splits of its head combined in index order.
//
// Threads: each warp its contiguous share of the q_dim outputs, 4 a lane where shares allow. Reads global split_partial
// (f32 hand-off); writes shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void combine(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kWidth = kDim + 4, kOutputs = P::kHeads * kDim;
  constexpr int kWide = kOutputs % (4 * S::kAgents) == 0 && kDim % 4 == 0 ? 4 : 1;
  const int agent = c.warp - S::kFirst;
  const int blocks = c.pos / P::kKvBlock + 1, active = blocks < P::kKvSplits ? blocks : P::kKvSplits;
  const auto from = S::split_partial(c);
  bf16* x = S::x(c);
  const int lo = share_begin(kOutputs, S::kAgents, agent), hi = share_begin(kOutputs, S::kAgents, agent + 1);
  for (int i = lo + c.lane * kWide; i < hi; i += 32 * kWide) {
    const int row = i / kDim * P::kKvSplits * kWidth, d = i % kDim;
    float peak = from.load(c, row + kDim);
    for (int s = 1; s < active; ++s) peak = fmaxf(peak, from.load(c, row + s * kWidth + kDim));
    float total = 0.f, sum[kWide] = {};
#pragma unroll 4
    for (int s = 0; s < active; ++s) {
      const float scale = __expf(from.load(c, row + s * kWidth + kDim) - peak);
      float v[kWide];
      from.template load<kWide>(c, row + s * kWidth + d, v);
      total += from.load(c, row + s * kWidth + kDim + 1) * scale;
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum[k] += v[k] * scale;
    }
    const float inverse = 1.f / total;
#pragma unroll
    for (int k = 0; k < kWide; ++k) x[i + k] = __float2bfloat16(sum[k] * inverse);
  }
}

}  // namespace amk::ops
