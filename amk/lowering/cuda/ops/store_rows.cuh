// out[row] = sum of partials (/ rms) (+ bias[layer, row]) for the worker's qkv rows.
//
// Threads: each agent a contiguous share of the worker's row groups, a row of a sequence a lane. Reads shared part, ssq (f32), global
// bias (f32); writes global out (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void store_rows(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  constexpr int kBatch = P::kBatch, kSlot = 8 * kBatch, kChunks = M::kChunks / S::kKParts;
  const int rows = M::end_row(c) - first;
  const int begin = share_begin(count, S::kAgents, agent) * kSlot, end = share_begin(count, S::kAgents, agent + 1) * kSlot;
  float scale = 1.f;
  // Without rows the sums of squares, too, are not the warp's to read: others may write them now.
  if constexpr (S::kHasSsq && kBatch == 1) {
    if (begin < end) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c));
  }
  const auto out = S::out(c);
  for (int from = begin; from < end; from += 32) {
    const int number = from + c.lane;
    const Place<kBatch> at(number);
    const bool live = number < end && at.row < rows;
    int to = first + at.row;
    if constexpr (kBatch > 1) {
      to += at.sequence * S::kOutRow;
      if constexpr (S::kHasSsq) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c) + at.sequence * S::kSsqRow);
    }
    float y = 0.f;
    if (live) {
      y = sum_partials<kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups>(S::part(c), number, count * kChunks);
      if constexpr (S::kHasBias) {
        y = fmaf(y, scale, S::bias(c).data[S::layer(c) * M::kRows + first + at.row]);
      } else {
        y *= scale;
      }
    }
    out.store(c, to, y, live);
  }
}

}  // namespace amk::ops
