// residual[r] += sum of partials (+ bias[layer, row]); h[row] = residual[r] for the worker's hidden rows, where a norm reads it.
//
// Threads: each agent a contiguous share of the worker's row groups, a row of a sequence a lane. Reads shared part, residual (f32),
// global bias (f32); writes shared residual and global h (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void add_residual(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  constexpr int kBatch = P::kBatch, kSlot = 8 * kBatch, kChunks = M::kChunks / S::kKParts;
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * kSlot;
  float* residual = S::residual(c);
  for (int from = share_begin(count, S::kAgents, agent) * kSlot; from < end; from += 32) {
    const int number = from + c.lane;
    const Place<kBatch> at(number);
    const bool live = number < end && at.row < rows;
    int to = first + at.row, own = at.row;
    if constexpr (kBatch > 1) own += at.sequence * S::kResidualRow;
    float y = 0.f;
    if (live) {
      y = sum_partials<kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups>(S::part(c), number, count * kChunks);
      if constexpr (S::kHasBias) y += S::bias(c).data[S::layer(c) * M::kRows + first + at.row];
      y = residual[own] + y;
      residual[own] = y;
    }
    if constexpr (S::kHasH) {
      if constexpr (kBatch > 1) to += at.sequence * S::kHRow;
      S::h(c).store(c, to, y, live);
    }
  }
}

}  // namespace amk::ops
