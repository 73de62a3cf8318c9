// logits[row] = sum of partials (/ rms) for the worker's vocabulary rows; the registers of every thread move on to the next token.
//
// Threads: each agent a contiguous share of the worker's row groups, a row a lane. Reads part (f32, shared), shared ssq (f32); writes
// global logits (f32), which nobody reads in the launch.
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void give_logits(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  constexpr int kChunks = M::kChunks / S::kKParts;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first;
  const int begin = share_begin(count, S::kAgents, agent) * 8, end = share_begin(count, S::kAgents, agent + 1) * 8;
  float* logits = S::logits(c).data;
  float scale = 1.f;
  if constexpr (S::kHasSsq) {
    // Without rows the sums of squares are not the warp's to read: others may write them now.
    if (begin < end) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c));
  }
  for (int r = begin + c.lane; r < end && r < rows; r += 32) {
    const float y = sum_partials<kChunks, P::kStreamAgents, 1, M::Weights::kRowGroups>(S::part(c), r, count * kChunks);
    logits[first + r] = y * scale;
  }
  // Last: the tags of this step belong to the epoch that ends here.
  ++c.pos, ++c.epoch;
}

}  // namespace amk::ops
