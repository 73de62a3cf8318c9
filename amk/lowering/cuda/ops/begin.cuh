// token, pos, epoch, done <- state (i32[4]), in every thread. Reads global state; it is next written by finish.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void begin(C& c) {
  const int* state = S::state(c).data;
  c.token = state[0], c.pos = state[1], c.epoch = static_cast<u32>(state[2]), c.done = state[3];
}

}  // namespace amk::ops
