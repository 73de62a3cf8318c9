// x = act for the warp's share of the MLP activation, or of a part of it, for each sequence.
//
// Threads: each warp its contiguous share, 16 bytes of act a lane. Reads global act (hand-off); writes
// shared x, scales, sums as vector_layouts.cuh has it.
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  constexpr int kCount = P::kFfn / S::kCut;
  const int from = kCount * S::k_part(c);
  static_assert(P::kFfn % S::kCut == 0, "equal parts");
  if constexpr (P::kBatch > 1) {
    stage_batch<S, kCount, P::kBatch, S::kActRow>(c, S::act(c).from(from));
  } else {
    stage_share<S, kCount>(c, S::act(c).from(from));
  }
}

}  // namespace amk::ops
