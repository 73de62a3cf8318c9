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
  constexpr int kDim = P::kHeadDim, kOutputs = P::kHeads * kDim;
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
  constexpr int kPieces = (kOutputs / S::kAgents + 32 * kWide - 1) / (32 * kWide), kBatch = kPieces > 2 ? 2 : 4;
  float peak[kPieces], total[kPieces] = {}, sum[kPieces][kWide] = {};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) peak[piece] = -3.0e38f;
#pragma unroll 1
  for (int s = 0; s < active; s += kBatch) {
    typename From::Raw raw[kPieces][kBatch];
    typename Scales::One peak_raw[kPieces][kBatch], total_raw[kPieces][kBatch];
    until_fresh(c, from.tag, [&] {
      bool fresh = true;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = lo + (piece * 32 + c.lane) * kWide, row = i / kDim * P::kKvSplits + s + k;
          if (i >= hi || s + k >= active) continue;
          raw[piece][k] = from.fetch(row * kDim + i % kDim);
          peak_raw[piece][k] = scales.fetch_one(row * 2), total_raw[piece][k] = scales.fetch_one(row * 2 + 1);
        }
      }
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int i = lo + (piece * 32 + c.lane) * kWide;
          if (i >= hi || s + k >= active) continue;
          fresh = fresh && from.fresh(raw[piece][k]) && scales.fresh_one(peak_raw[piece][k]) &&
                  scales.fresh_one(total_raw[piece][k]);
        }
      }
      return fresh;
    });
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int i = lo + (piece * 32 + c.lane) * kWide;
        if (i >= hi || s + k >= active) continue;
        float v[kWide];
        from.values(raw[piece][k], v);
        const float m = scales.value_one(peak_raw[piece][k]), t = scales.value_one(total_raw[piece][k]);
        const float top = fmaxf(peak[piece], m), fade = __expf(peak[piece] - top), w = __expf(m - top);
        peak[piece] = top, total[piece] = total[piece] * fade + t * w;
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[piece][j] = sum[piece][j] * fade + v[j] * w;
      }
    }
  }
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int i = lo + (piece * 32 + c.lane) * kWide;
    if (i >= hi) continue;
    const float inverse = 1.f / total[piece];
#pragma unroll
    for (int j = 0; j < kWide; j += 2) {
      *reinterpret_cast<u32*>(x + i + j) = pack_bf16(sum[piece][j] * inverse, sum[piece][j + 1] * inverse);
    }
  }
}

}  // namespace amk::ops
