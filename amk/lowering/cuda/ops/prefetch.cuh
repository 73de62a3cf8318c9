// The chunks that the warp's ring will issue next are asked for in L2; nothing is read.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void prefetch(C& c) {
  c.ring.prefetch(S::kChunks, c.lane);
}

}  // namespace amk::ops
