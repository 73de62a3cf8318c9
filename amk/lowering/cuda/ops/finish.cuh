// state (i32[4]) <- token, pos, epoch, done; one lane of worker 0.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void finish(C& c) {
  if (c.worker != 0 || c.lane != 0) return;
  int* state = S::state(c).data;
  state[0] = c.token, state[1] = c.pos, state[2] = static_cast<int>(c.epoch), state[3] = c.done;
}

}  // namespace amk::ops
