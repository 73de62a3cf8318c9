// h[r] = residual[r] = table[token, r] for the worker's hidden rows, of each sequence's token.
//
// Threads: each agent a contiguous share of the worker's row groups, a row of a sequence a lane. Reads global table (bf16); writes
// shared residual (f32) and global h (hand-off).
#pragma once
#include "amk/token_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void embed_rows(C& c) {
  using P = typename C::P;
  using M = typename P::Hidden;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  constexpr int kBatch = P::kBatch, kSlot = 8 * kBatch;
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * kSlot;
  for (int from = share_begin(count, S::kAgents, agent) * kSlot; from < end; from += 32) {
    const int number = from + c.lane;
    const Place<kBatch> at(number);
    const bool live = number < end && at.row < rows;
    int to = first + at.row, own = at.row;
    if constexpr (kBatch > 1) own += at.sequence * S::kResidualRow, to += at.sequence * S::kHRow;
    const bf16* row = token_row<S>(c, at.sequence);
    float y = 0.f;
    if (live) S::residual(c)[own] = y = __bfloat162float(row[first + at.row]);
    S::h(c).store(c, to, y, live);
  }
}

}  // namespace amk::ops
