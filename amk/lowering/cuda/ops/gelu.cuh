// act[row] = gelu(sum of partials (+ bias[layer, row])): y * Phi(y) exactly, or with Phi by tanh.
//
// Threads: each agent a contiguous share of the worker's row groups, a row of a sequence a lane. Reads shared part (f32), global
// bias (f32); writes global act (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <bool kTanh>
__device__ __forceinline__ float gelu_of(float y) {
  if constexpr (kTanh) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (y + 0.044715 y^3)
    return __fdividef(y, 1.f + __expf(-1.5957691216f * fmaf(0.044715f * y * y, y, y)));
  } else {
    return 0.5f * y * (1.f + erff(0.70710678119f * y));
  }
}

template <class S, class C>
__device__ __forceinline__ void gelu(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  constexpr int kBatch = P::kBatch, kSlot = 8 * kBatch;
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * kSlot;
  const auto act = S::act(c);
  for (int from = share_begin(count, S::kAgents, agent) * kSlot; from < end; from += 32) {
    const int number = from + c.lane;
    const Place<kBatch> at(number);
    const bool live = number < end && at.row < rows;
    int to = first + at.row;
    if constexpr (kBatch > 1) to += at.sequence * S::kActRow;
    float y = 0.f;
    if (live) {
      y = sum_partials<M::kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups>(S::part(c), number, count * M::kChunks);
      if constexpr (S::kHasBias) y += S::bias(c).data[S::layer(c) * M::kRows + first + at.row];
      y = gelu_of<S::kTanh != 0>(y);
    }
    act.store(c, to, y, live);
  }
}

}  // namespace amk::ops
