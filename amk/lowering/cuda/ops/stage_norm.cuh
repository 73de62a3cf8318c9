// x = h * norm[index], ssq[a] = sum of squares of h over the warp's share, for each sequence. The consumer of x divides by rms.
//
// Threads: each warp its contiguous share, 16 bytes of h a lane. Reads global h (hand-off), norm (f32);
// writes shared x, also, scales, sums as staged.cuh has it, ssq (f32).
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_norm_cells(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const auto h = S::h(c);
  constexpr int kWide = decltype(h)::kWide;
  constexpr bool kBlocks = S::kHasScales;
  constexpr int kMost = kStagedMost<P::kHidden, kBlocks, S::kAgents>;
  static_assert(P::kHidden % kWide == 0 && (kBlocks || P::kHidden % (kWide * S::kAgents) == 0), "shares are whole fetches");
  const float* norm = S::norm(c).data + S::index(c) * P::kHidden;
  const int lo = staged_begin<P::kHidden, kBlocks>(S::kAgents, agent);
  const int hi = staged_begin<P::kHidden, kBlocks>(S::kAgents, agent + 1);
  // The norm is launch-constant: its loads go out with those of h, or before them while the words are not fresh yet.
  constexpr int kPieces = (kMost + 32 * kWide - 1) / (32 * kWide);
  static_assert(kPieces <= 8, "one batch");
  float weight[kPieces][kWide];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int i = lo + (piece * 32 + c.lane) * kWide;
#pragma unroll
    for (int k = 0; k < kWide; ++k) weight[piece][k] = i < hi ? norm[i + k] : 0.f;
  }
  if constexpr (P::kBatch == 1) {
    float squares = 0.f;
    for_each_wide<kMost, kBlocks>(c, h, lo, hi, [&](int i, int piece, float (&v)[kWide]) {
#pragma unroll
      for (int k = 0; k < kWide; k += 2) squares += v[k] * v[k] + v[k + 1] * v[k + 1];
#pragma unroll
      for (int k = 0; k < kWide; ++k) v[k] *= weight[piece][k];
      put_staged<S>(c, i, hi, v);
    });
    squares = warp_sum(squares);
    if (c.lane == 0) S::ssq(c)[agent] = squares;
  } else {
    static_assert(!kBlocks && !S::kHasAlso, "a batch is staged in bf16");
    constexpr int kTogether = rows_together<kMost, P::kBatch, decltype(h)>();
#pragma unroll 1
    for (int s = 0; s < P::kBatch; s += kTogether) {
      bf16* x = S::x(c) + s * S::kXRow;
      float squares[kTogether] = {};
      for_each_row<kMost, kTogether, S::kHRow, false, kWholeRows<kMost, kTogether, P::kBatch, decltype(h)>>(
          c, h.from(s * S::kHRow), P::kBatch - s, lo, hi, [&](int row, int i, int piece, float(&v)[kWide]) {
#pragma unroll
            for (int k = 0; k < kWide; k += 2) squares[row] += v[k] * v[k] + v[k + 1] * v[k + 1];
#pragma unroll
            for (int k = 0; k < kWide; ++k) v[k] *= weight[piece][k];
            constexpr int kStride = 32 * kWide;
            write_block(x + row * S::kXRow + piece * kStride, i - piece * kStride, v, 1.f, true);
          });
#pragma unroll
      for (int row = 0; row < kTogether; ++row) {
        squares[row] = warp_sum(squares[row]);
        if (c.lane == 0 && s + row < P::kBatch) S::ssq(c)[(s + row) * S::kSsqRow + agent] = squares[row];
      }
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void stage_norm(C& c) {
  using P = typename C::P;
  if constexpr (P::kBatch > 1) {
    if constexpr (kPlainRows<decltype(S::h(c))> && kRowsOf<S, P::kHidden, P::kBatch, true> && S::kHRow % kUnit == 0) {
      const bf16* rows = S::h(c).data;
      const float* norm = S::norm(c).data + S::index(c) * P::kHidden;
      norm_rows<S, P::kHidden, P::kBatch>(c, [&](int s) { return rows + s * S::kHRow; }, norm);
      return;
    }
  }
  stage_norm_cells<S>(c);
}

}  // namespace amk::ops
