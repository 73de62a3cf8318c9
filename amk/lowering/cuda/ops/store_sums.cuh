// k_sums[index, row] = sum of partials over share `index` of the columns, for the worker's rows of them.
//
// Threads: each agent a contiguous share of the worker's row groups, a row of a sequence a lane. Reads shared part (f32); writes
// global k_sums (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void store_sums(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  constexpr int kBatch = P::kBatch, kSlot = 8 * kBatch, kChunks = M::kChunks / S::kCut;
  constexpr int kTurns = kSlot % 128 == 0 ? 4 : 1;  // of a lane at a time: all of one row group, or one
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * kSlot;
  const auto out = S::k_sums(c).from(c.shares.k_split_index * P::kHidden + first);
  for (int from = share_begin(count, S::kAgents, agent) * kSlot; from < end; from += 32 * kTurns) {
    const int number = from + c.lane;
    float y[kTurns] = {};
    if (number < end) {
      const Partials<kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups> partials(number / kSlot, count * kChunks);
      partials.template sums<32>(S::part(c), number, y);
    }
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      const Place<kBatch> at(number + 32 * k);
      int to = at.row;
      if constexpr (kBatch > 1) to += at.sequence * S::kKSumsRow;
      out.store(c, to, y[k], number < end && at.row < rows);
    }
  }
}

}  // namespace amk::ops
