// residual[r] += sum of partials; h[row] = residual[r] for the worker's hidden rows.
//
// Threads: each agent a contiguous share of the worker's row groups, a row a lane. Reads shared part, residual (f32); writes
// shared residual and global h (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void add_residual(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * 8;
  float* residual = S::residual(c);
  const auto h = S::h(c);
  for (int from = share_begin(count, S::kAgents, agent) * 8; from < end; from += 32) {
    const int r = from + c.lane;
    const bool live = r < end && r < rows;
    float y = 0.f;
    if (live) {
      y = residual[r] + sum_partials<M::kChunks, P::kStreamAgents>(S::part(c), r, count * M::kChunks);
      residual[r] = y;
    }
    h.store(c, first + r, y, live);
  }
}

}  // namespace amk::ops
