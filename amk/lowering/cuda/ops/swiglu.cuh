// act[i] = silu(gate[i]) * up[i], gate and up being rows 0..3 and 4..7 of a row group, both divided by rms.
//
// Threads: each agent a contiguous share of the worker's row groups, an output of a sequence a lane. Reads shared part, ssq (f32); writes
// global act (hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void swiglu(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  constexpr int kBatch = P::kBatch, kEach = 4 * kBatch, kChunks = M::kChunks / S::kKParts;
  const int agent = c.warp - S::kFirst, count = M::count(c), chunks = count * kChunks;
  const int first = M::first(c) * 4;
  const int begin = share_begin(count, S::kAgents, agent) * kEach, end = share_begin(count, S::kAgents, agent + 1) * kEach;
  // Where a warp has whole row groups, a lane's sequence is the same in every turn.
  constexpr bool kSame = kBatch > 1 && 32 % kEach == 0;
  float scale = 1.f;
  // Without outputs the sums of squares, too, are not the warp's to read: others may write them now.
  if (begin < end) {
    if constexpr (kBatch == 1) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c));
    if constexpr (kSame) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c) + c.lane / 4 % kBatch * S::kSsqRow);
  }
  const auto act = S::act(c);
  for (int from = begin; from < end; from += 32) {
    const int number = from + c.lane, row = number / 4 * 8 + number % 4;
    const int i = kBatch == 1 ? number : number / kEach * 4 + number % 4;
    const bool live = number < end && first + i < P::kFfn;
    int to = first + i;
    if constexpr (kBatch > 1) {
      const int sequence = number / 4 % kBatch;
      to += sequence * S::kActRow;
      if constexpr (!kSame) scale = inverse_rms<P, S::kSsqAgents>(S::ssq(c) + sequence * S::kSsqRow);
    }
    float y = 0.f;
    if (live) {
      const Partials<kChunks, P::kStreamAgents, kBatch, M::Weights::kRowGroups> partials(row / (8 * kBatch), chunks);
      float sums[2];
      if constexpr (kBatch == 1) {
        sums[0] = partials.sum(S::part(c), row), sums[1] = partials.sum(S::part(c), row + 4);
      } else {
        partials.template sums<4>(S::part(c), row, sums);
      }
      const float gate = sums[0] * scale, up = sums[1] * scale;
      y = __fdividef(gate, 1.f + __expf(-gate)) * up;
    }
    act.store(c, to, y, live);
  }
}

}  // namespace amk::ops
