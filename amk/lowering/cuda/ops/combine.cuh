// x[i] = attention output i: the active splits of its head combined in index order.
//
// Threads: each warp its contiguous share of the q_dim outputs, 16 bytes of each split a lane. Reads global split_partial,
// split_scale (hand-offs); writes shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void combine(C& c) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kOutputs = P::kHeads * kDim, kBatch = 4;
  const auto from = S::split_partial(c);
  const auto scales = S::split_scale(c);
  using From = decltype(from);
  using Scales = decltype(scales);
  constexpr int kWide = From::kWide;
  static_assert(kOutputs % (kWide * S::kAgents) == 0 && kDim % kWide == 0, "shares are whole fetches");
  const int agent = c.warp - S::kFirst;
  const int blocks = c.pos / P::kKvBlock + 1, active = blocks < P::kKvSplits ? blocks : P::kKvSplits;
  bf16* x = S::x(c);
  const int lo = share_begin(kOutputs, S::kAgents, agent), hi = share_begin(kOutputs, S::kAgents, agent + 1);
  for (int i = lo + c.lane * kWide; i < hi; i += 32 * kWide) {
    const int first = i / kDim * P::kKvSplits, d = i % kDim;
    float peak = -3.0e38f, total = 0.f, sum[kWide] = {};
#pragma unroll 1
    for (int s = 0; s < active; s += kBatch) {
      typename From::Raw raw[kBatch];
      typename Scales::One peak_raw[kBatch], total_raw[kBatch];
      until_fresh(c, from.tag, [&] {
        bool fresh = true;
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (s + k >= active) continue;
          const int split = first + s + k;
          raw[k] = from.fetch(split * kDim + d);
          peak_raw[k] = scales.fetch_one(split * 2), total_raw[k] = scales.fetch_one(split * 2 + 1);
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (s + k >= active) continue;
          fresh = fresh && from.fresh(raw[k]) && scales.fresh_one(peak_raw[k]) && scales.fresh_one(total_raw[k]);
        }
        return fresh;
      });
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (s + k >= active) continue;
        float v[kWide];
        from.values(raw[k], v);
        const float m = scales.value_one(peak_raw[k]), t = scales.value_one(total_raw[k]);
        const float top = fmaxf(peak, m), fade = __expf(peak - top), w = __expf(m - top);
        peak = top, total = total * fade + t * w;
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[j] = sum[j] * fade + v[j] * w;
      }
    }
    const float inverse = 1.f / total;
#pragma unroll
    for (int j = 0; j < kWide; j += 2) {
      *reinterpret_cast<u32*>(x + i + j) = pack_bf16(sum[j] * inverse, sum[j + 1] * inverse);
    }
  }
}

}  // namespace amk::ops
