// Copies that the warp's ring held back are issued, at most kMost.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void refill(C& c) {
  c.ring.refill(S::kMost);
}

}  // namespace amk::ops
