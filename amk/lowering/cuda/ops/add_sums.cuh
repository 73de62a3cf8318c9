// residual[r] += sum of k_sums[s, row] over shares s (+ bias[layer, row]); h[row] = residual[r] for the worker's hidden rows, where a norm
// reads it.
//
// Threads: each agent a contiguous share of the tokens of a step, two rows a lane. Reads global k_sums (hand-off), bias (f32), shared
// residual (f32); writes shared residual and global h (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void add_sums(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), pairs = (M::end_row(c) - first) / 2;
  constexpr int kBatch = P::kBatch, kShares = S::kKSplits, kTogether = kShares < 8 ? 8 / kShares : 1;
  const int begin = share_begin(kBatch, S::kAgents, agent) * pairs, end = share_begin(kBatch, S::kAgents, agent + 1) * pairs;
  const auto sums = S::k_sums(c).from(first);
  using Cell = decltype(S::k_sums(c));
#pragma unroll 1
  for (int from = begin; from < end; from += 32 * kTogether) {
    typename Cell::Two raw[kTogether][kShares];
    int sequence[kTogether], row[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int number = min(from + 32 * k + c.lane, end - 1);
      sequence[k] = kBatch == 1 ? 0 : number / pairs, row[k] = (number - sequence[k] * pairs) * 2;
    }
    until_fresh(c, sums.tag, [&] {
      bool fresh = true;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        int at = row[k];
        if constexpr (kBatch > 1) at += sequence[k] * S::kKSumsRow;
#pragma unroll
        for (int s = 0; s < kShares; ++s) raw[k][s] = sums.fetch_two(at + s * P::kHidden);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
#pragma unroll
        for (int s = 0; s < kShares; ++s) fresh &= sums.fresh_two(raw[k][s]);
      }
      return fresh;
    });
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (from + 32 * k + c.lane >= end) continue;
      float2 y = Cell::value_two(raw[k][0]);
#pragma unroll
      for (int s = 1; s < kShares; ++s) {
        const float2 more = Cell::value_two(raw[k][s]);
        y.x += more.x, y.y += more.y;
      }
      if constexpr (S::kHasBias) {
        const float2 bias = *reinterpret_cast<const float2*>(S::bias(c).data + S::layer(c) * M::kRows + first + row[k]);
        y.x += bias.x, y.y += bias.y;
      }
      int own = row[k], to = first + row[k];
      if constexpr (kBatch > 1) own += sequence[k] * S::kResidualRow;
      float2* residual = reinterpret_cast<float2*>(S::residual(c) + own);
      const float2 before = *residual;
      y.x += before.x, y.y += before.y;
      *residual = y;
      if constexpr (S::kHasH) {
        if constexpr (kBatch > 1) to += sequence[k] * S::kHRow;
        S::h(c).store_two(to, y);
      }
    }
  }
}

}  // namespace amk::ops
