// x = attn for the warp's share of the attention output, for each sequence.
//
// Threads: each warp its contiguous share, 16 bytes of attn a lane. Reads global attn (hand-off); writes shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_attention(C& c) {
  using P = typename C::P;
  constexpr int kCount = P::kHeads * P::kHeadDim;
  const int agent = c.warp - S::kFirst;
  if constexpr (P::kBatch > 1) {
    stage_share<kCount, S::kAgents, P::kBatch, S::kAttnRow, S::kXRow>(c, S::attn(c), S::x(c), agent);
  } else {
    stage_share<kCount, S::kAgents, 1, 0, 0>(c, S::attn(c), S::x(c), agent);
  }
}

}  // namespace amk::ops
