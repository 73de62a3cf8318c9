// x = attn for the warp's share of the attention output.
//
// Threads: each warp its contiguous share, 16 bytes of attn a lane. Reads global attn (hand-off); writes shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_attention(C& c) {
  using P = typename C::P;
  stage_share<P::kHeads * P::kHeadDim, S::kAgents>(c, S::attn(c), S::x(c), c.warp - S::kFirst);
}

}  // namespace amk::ops
