// out[row] = sum of partials / rms (+ bias[layer, row]) for the worker's qkv rows.
//
// Threads: each agent a contiguous share of the worker's row groups, a row a lane. Reads shared part, ssq (f32), global
// bias (f32); writes global out (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void store_rows(C& c) {
  using P = typename C::P;
  using M = typename P::Qkv;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * 8;
  const float scale = inverse_rms<P>(S::ssq(c), S::kSsqAgents);
  const auto out = S::out(c);
  for (int from = share_begin(count, S::kAgents, agent) * 8; from < end; from += 32) {
    const int r = from + c.lane;
    const bool live = r < end && r < rows;
    float y = 0.f;
    if (live) {
      y = sum_partials<M::kChunks, P::kStreamAgents>(S::part(c), r, count * M::kChunks) * scale;
      if constexpr (S::kHasBias) y += S::bias(c).data[S::layer(c) * M::kRows + first + r];
    }
    out.store(c, first + r, y, live);
  }
}

}  // namespace amk::ops
