// x = act for the warp's share of the MLP activation.
//
// Threads: each warp its contiguous share, 16 bytes of act a lane. Reads global act (hand-off); writes
// shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  stage_share<C::P::kFfn, S::kAgents>(c, S::act(c), S::x(c), c.warp - S::kFirst);
}

}  // namespace amk::ops
