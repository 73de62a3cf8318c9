// state (i32[4], then tokens, and if live positions, of further sequences, and the ends of those behind the first 32) <- token,
// pos, epoch, done; worker 0. One lane, but
// for positions, which lane s has of sequence s.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void finish(C& c) {
  if (c.worker != 0) return;
  int* state = S::state(c).data;
  if constexpr (C::P::kLive) {
    if (c.lane < C::P::kBatch) state[c.lane == 0 ? 1 : 2 + C::P::kBatch + c.lane] = c.place;
  }
  if constexpr (C::kTokenALane) {
    constexpr int kSequences = C::P::kBatch / C::P::kRows;
    if (c.lane > 0 && c.lane < kSequences) state[3 + c.lane] = c.tokens[0];
    if constexpr (kSequences > 32) {
      if (32 + c.lane < kSequences) state[35 + c.lane] = c.tokens[1];
      if (c.lane == 0) state[3 + kSequences] = c.later;
    }
  }
  if (c.lane != 0) return;
  if constexpr (!C::kTokenALane) {
#pragma unroll
    for (int s = 1; s < C::P::kBatch / C::P::kRows; ++s) state[3 + s] = c.tokens[s];
  }
  state[0] = c.tokens[0], state[2] = static_cast<int>(c.epoch), state[3] = c.done;
  if constexpr (!C::P::kLive) state[1] = c.pos;
}

}  // namespace amk::ops
