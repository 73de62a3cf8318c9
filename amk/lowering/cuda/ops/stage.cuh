// x = act for the warp's share of the MLP activation.
//
// Threads: each warp its contiguous share, 8 elements a lane where shares allow. Reads global act (bf16 hand-off); writes
// shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  using P = typename C::P;
  constexpr int kWide = P::kFfn % (8 * S::kAgents) == 0 ? 8 : 1;
  const int agent = c.warp - S::kFirst;
  const auto act = S::act(c);
  bf16* x = S::x(c);
  const int lo = share_begin(P::kFfn, S::kAgents, agent), hi = share_begin(P::kFfn, S::kAgents, agent + 1);
#pragma unroll 4
  for (int i = lo + c.lane * kWide; i < hi; i += 32 * kWide) {
    float v[kWide];
    act.template load<kWide>(c, i, v);
    if constexpr (kWide == 8) {
      __nv_bfloat162 packed[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) packed[k] = __floats2bfloat162_rn(v[2 * k], v[2 * k + 1]);
      *reinterpret_cast<uint4*>(x + i) = reinterpret_cast<const uint4&>(packed);
    } else {
      x[i] = __float2bfloat16(v[0]);
    }
  }
}

}  // namespace amk::ops
