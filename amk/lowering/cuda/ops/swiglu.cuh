// act[i] = silu(gate[i]) * up[i], gate and up being rows 0..3 and 4..7 of a row group, both divided by rms.
//
// Threads: each agent a contiguous share of the worker's row groups, an output a lane. Reads shared part, ssq (f32); writes
// global act (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void swiglu(C& c) {
  using P = typename C::P;
  using M = typename P::GateUp;
  const int agent = c.warp - S::kFirst, count = M::count(c), chunks = count * M::kChunks;
  const int first = M::first(c) * 4, end = share_begin(count, S::kAgents, agent + 1) * 4;
  const float scale = inverse_rms<P>(S::ssq(c), S::kSsqAgents);
  const auto act = S::act(c);
  for (int from = share_begin(count, S::kAgents, agent) * 4; from < end; from += 32) {
    const int i = from + c.lane, row = i / 4 * 8 + i % 4;
    const bool live = i < end && first + i < P::kFfn;
    float y = 0.f;
    if (live) {
      const float gate = sum_partials<M::kChunks, P::kStreamAgents>(S::part(c), row, chunks) * scale;
      const float up = sum_partials<M::kChunks, P::kStreamAgents>(S::part(c), row + 4, chunks) * scale;
      y = __fdividef(gate, 1.f + __expf(-gate)) * up;
    }
    act.store(c, first + i, y, live);
  }
}

}  // namespace amk::ops
