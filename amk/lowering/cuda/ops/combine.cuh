// x[i] = attention output i: the active splits of its head combined in index order.
//
// Threads: each warp its contiguous share of the q_dim outputs, 16 bytes of each split a lane; the loads of kBatch splits of
// all its outputs are in flight at once. Reads global split_partial, split_scale (hand-offs); writes shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void combine(C& c) {
  using P = typename C::P;
  const auto from = S::split_partial(c);
  const auto scales = S::split_scale(c);
  using From = decltype(from);
  using Scales = decltype(scales);
  constexpr int kDim = P::kHeadDim, kOutputs = P::kHeads * kDim, kWide = From::kWide, kStride = 32 * kWide;
  constexpr int kAll = (kOutputs / S::kAgents + kStride - 1) / kStride, kPieces = kAll < 2 ? kAll : 2, kBatch = 3;
  static_assert(kOutputs % (kWide * S::kAgents) == 0 && kDim % kWide == 0, "shares are whole fetches");
  static_assert(kStride % kDim == 0, "a lane's pieces are whole heads apart");
  // From one piece of a lane to its next, in rows of [heads, splits].
  constexpr int kRows = kStride / kDim * P::kKvSplits;
  const int agent = c.warp - S::kFirst;
  const int blocks = c.pos / P::kKvBlock + 1, active = blocks < P::kKvSplits ? blocks : P::kKvSplits;
  const int hi = share_begin(kOutputs, S::kAgents, agent + 1);
#pragma unroll 1
  for (int base = share_begin(kOutputs, S::kAgents, agent) + c.lane * kWide; base < hi; base += kPieces * kStride) {
    const int row = base / kDim * P::kKvSplits;
    float peak[kPieces], total[kPieces] = {}, sum[kPieces][kWide] = {};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) peak[piece] = -3.0e38f;
#pragma unroll 1
    for (int s = 0; s < active; s += kBatch) {
      const auto mine = from.from((row + s) * kDim + base % kDim);
      const auto my_scales = scales.from((row + s) * 2);
      typename From::Raw raw[kPieces][kBatch];
      typename Scales::Two scale[kPieces][kBatch];
      until_fresh(c, from.tag, [&] {
        bool fresh = true;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            if (base + piece * kStride >= hi || s + k >= active) continue;
            raw[piece][k] = mine.fetch((piece * kRows + k) * kDim);
            scale[piece][k] = my_scales.fetch_two((piece * kRows + k) * 2);
          }
        }
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            if (base + piece * kStride >= hi || s + k >= active) continue;
            fresh = fresh && from.fresh(raw[piece][k]) && scales.fresh_two(scale[piece][k]);
          }
        }
        return fresh;
      });
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (base + piece * kStride >= hi || s + k >= active) continue;
          float v[kWide];
          from.values(raw[piece][k], v);
          const float2 part = scales.value_two(scale[piece][k]);
          const float top = fmaxf(peak[piece], part.x), fade = __expf(peak[piece] - top), w = __expf(part.x - top);
          peak[piece] = top, total[piece] = total[piece] * fade + part.y * w;
#pragma unroll
          for (int j = 0; j < kWide; ++j) sum[piece][j] = sum[piece][j] * fade + v[j] * w;
        }
      }
    }
    bf16* x = S::x(c) + base;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (base + piece * kStride >= hi) continue;
      const float inverse = 1.f / total[piece];
#pragma unroll
      for (int j = 0; j < kWide; j += 2) {
        *reinterpret_cast<u32*>(x + piece * kStride + j) = pack_bf16(sum[piece][j] * inverse, sum[piece][j + 1] * inverse);
      }
    }
  }
}

}  // namespace amk::ops
