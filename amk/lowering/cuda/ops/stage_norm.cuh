// x = h * norm[index], ssq[a] = sum of squares of h over the warp's share, for each sequence. The consumer of x divides by rms.
//
// Threads: each warp its contiguous share, 16 bytes of h a lane. Reads global h (hand-off), norm (f32);
// writes shared x (bf16), ssq (f32).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_norm(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const auto h = S::h(c);
  constexpr int kWide = decltype(h)::kWide;
  static_assert(P::kHidden % (kWide * S::kAgents) == 0, "shares are whole fetches");
  const float* norm = S::norm(c).data + S::index(c) * P::kHidden;
  constexpr int kBatch = P::kBatch, kTogether = rows_together<P::kHidden / S::kAgents, kBatch, decltype(h)>();
  const int lo = share_begin(P::kHidden, S::kAgents, agent), hi = share_begin(P::kHidden, S::kAgents, agent + 1);
  // The norm is launch-constant: its loads go out with those of h, or before them while the words are not fresh yet.
  constexpr int kPieces = (P::kHidden / S::kAgents + 32 * kWide - 1) / (32 * kWide);
  static_assert(kPieces <= 8, "one batch");
  float weight[kPieces][kWide];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int i = lo + (piece * 32 + c.lane) * kWide;
#pragma unroll
    for (int k = 0; k < kWide; ++k) weight[piece][k] = i < hi ? norm[i + k] : 0.f;
  }
#pragma unroll 1
  for (int s = 0; s < kBatch; s += kTogether) {
    int apart = 0;
    if constexpr (kBatch > 1) apart = S::kXRow;
    bf16* x = S::x(c) + s * apart;
    float squares[kTogether] = {};
    const auto use = [&](int row, int i, int piece, float(&v)[kWide]) {
#pragma unroll
      for (int k = 0; k < kWide; k += 2) {
        squares[row] += v[k] * v[k] + v[k + 1] * v[k + 1];
        *reinterpret_cast<u32*>(x + row * apart + x_place(i + k)) =
            pack_bf16(v[k] * weight[piece][k], v[k + 1] * weight[piece][k + 1]);
      }
    };
    if constexpr (kBatch > 1) {
      for_each_row<P::kHidden / S::kAgents, kTogether, S::kHRow>(c, h.from(s * S::kHRow), kBatch - s, lo, hi, use);
    } else {
      for_each_row<P::kHidden / S::kAgents, 1, 0>(c, h, 1, lo, hi, use);
    }
#pragma unroll
    for (int row = 0; row < kTogether; ++row) {
      squares[row] = warp_sum(squares[row]);
      int place = agent;
      if constexpr (kBatch > 1) place += (s + row) * S::kSsqRow;
      if (c.lane == 0 && (row == 0 || s + row < kBatch)) S::ssq(c)[place] = squares[row];
    }
  }
}

}  // namespace amk::ops
