// x = act for the warp's share of the MLP activation, for each sequence; x holds one part of it at a time.
//
// Threads: each warp its contiguous share, 16 bytes of act a lane. Reads global act (hand-off); writes
// shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  using P = typename C::P;
  constexpr int kCount = P::kFfn / S::kKParts, kFrom = kCount * S::kKPart;
  static_assert(P::kFfn % S::kKParts == 0, "equal parts");
  const int agent = c.warp - S::kFirst;
  if constexpr (P::kBatch > 1) {
    stage_share<kCount, S::kAgents, P::kBatch, S::kActRow, S::kXRow>(c, S::act(c).from(kFrom), S::x(c), agent);
  } else {
    stage_share<kCount, S::kAgents, 1, 0, 0>(c, S::act(c).from(kFrom), S::x(c), agent);
  }
}

}  // namespace amk::ops
