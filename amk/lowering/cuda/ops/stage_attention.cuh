// x = attn for the warp's share of the attention output, or of a part of it, for each sequence.
//
// Threads: each warp its contiguous share, 16 bytes of attn a lane. Reads global attn (hand-off); writes shared x, scales, sums
// as vector_layouts.cuh has it.
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_attention(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  constexpr int kCount = P::kHeads * P::kHeadDim / S::kCut;
  const int from = kCount * S::k_part(c);
  if constexpr (P::kBatch > 1) {
    stage_batch<S, kCount, P::kBatch, S::kAttnRow>(c, S::attn(c).from(from));
  } else {
    stage_share<S, kCount>(c, S::attn(c).from(from));
  }
}

}  // namespace amk::ops
