// state (i32[4], then the tokens of further sequences) <- token, pos, epoch, done; one lane of worker 0.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void finish(C& c) {
  if (c.worker != 0 || c.lane != 0) return;
  int* state = S::state(c).data;
#pragma unroll
  for (int s = 1; s < C::P::kBatch / C::P::kRows; ++s) state[3 + s] = c.tokens[s];
  state[0] = c.tokens[0], state[1] = c.pos, state[2] = static_cast<int>(c.epoch), state[3] = c.done;
}

}  // namespace amk::ops
