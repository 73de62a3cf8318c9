// x = (hidden - mean) / sqrt(variance + eps) * norm[n] + shift[n] of norm n, for each sequence.
//
// Threads: each warp its contiguous share of x. Reads shared hidden, moments (f32) of all warps, global norm, shift (f32);
// writes shared x, also, scales, sums as vector_layouts.cuh has it.
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

// Mean and 1 / sqrt(variance + eps) of kCount elements from the moments of kAgents equal shares: the sum of squared
// deviations is that within the shares, and for each share that of its mean (Chan, Golub and LeVeque 1979).
template <class P, int kAgents>
struct Moments {
  float mean = 0.f, scale;
  __device__ __forceinline__ explicit Moments(const float* moments) {
    for (int a = 0; a < kAgents; ++a) mean += moments[2 * a];
    mean /= static_cast<float>(kAgents);
    float within = 0.f, between = 0.f;
    for (int a = 0; a < kAgents; ++a) {
      const float off = moments[2 * a] - mean;
      within += moments[2 * a + 1], between = fmaf(off, off, between);
    }
    const float squares = fmaf(between, static_cast<float>(P::kHidden / kAgents), within);
    scale = rsqrtf(fmaf(squares, 1.f / static_cast<float>(P::kHidden), P::kRmsEps));
  }
};

template <class S, class C>
__device__ __forceinline__ void layer_norm(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  constexpr bool kBlocks = S::kHasScales;
  constexpr int kWide = 4, kStride = 32 * kWide, kMost = kStagedMost<P::kHidden, kBlocks, S::kAgents>;
  constexpr int kLeast = staged_least<P::kHidden, kBlocks, S::kAgents>(), kPieces = (kMost + kStride - 1) / kStride;
  static_assert(P::kHidden % kWide == 0 && (kBlocks || P::kHidden % (kWide * S::kAgents) == 0), "shares are whole fetches");
  const int agent = c.warp - S::kFirst;
  const int lo = staged_begin<P::kHidden, kBlocks>(S::kAgents, agent);
  const int hi = staged_begin<P::kHidden, kBlocks>(S::kAgents, agent + 1);
  const int row = (S::kNorm + S::kNorms * S::layer(c)) * P::kHidden;
  const float *norm = S::norm(c).data + row, *shift = S::shift(c).data + row;
#pragma unroll 1
  for (int s = 0; s < P::kBatch; ++s) {
    const float *hidden = S::hidden(c), *all = S::moments(c);
    if constexpr (P::kBatch > 1) hidden += s * S::kHiddenRow, all += s * S::kMomentsRow;
    const Moments<P, S::kMomentAgents> moments(all);
    float v[kPieces][kWide] = {};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int i = lo + (piece * 32 + c.lane) * kWide;
      if ((piece + 1) * kStride > kLeast && i >= hi) continue;
#pragma unroll
      for (int k = 0; k < kWide; ++k) v[piece][k] = fmaf((hidden[i + k] - moments.mean) * moments.scale, norm[i + k], shift[i + k]);
    }
    if constexpr (P::kBatch == 1) {
      put_share<S, kWide, kPieces, kLeast>(c, lo, hi, v);
    } else {
      static_assert(!kBlocks && !S::kHasAlso, "a batch is staged in bf16");
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int i = lo + (piece * 32 + c.lane) * kWide;
        if (i < hi) write_block(S::x(c) + s * S::kXRow, i, v[piece], 1.f);
      }
    }
  }
}

}  // namespace amk::ops
