// token, pos, epoch, done <- state (i32[4], then the tokens of further sequences), in every thread. Reads global state; it is next written by finish.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void begin(C& c) {
  const int* state = S::state(c).data;
#pragma unroll
  for (int s = 1; s < C::P::kBatch; ++s) c.tokens[s] = state[3 + s];
  c.tokens[0] = state[0], c.pos = state[1], c.epoch = static_cast<u32>(state[2]), c.done = state[3];
}

}  // namespace amk::ops
