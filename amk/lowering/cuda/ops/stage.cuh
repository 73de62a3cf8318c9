// x = act for the warp's share of the MLP activation.
//
// Threads: each warp its contiguous share, 16 bytes of act a lane. Reads global act (hand-off); writes
// shared x, scales, sums as staged.cuh has it.
#pragma once
#include "amk/staged.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  stage_share<S, C::P::kFfn>(c, S::act(c));
}

}  // namespace amk::ops
