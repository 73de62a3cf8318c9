// x = act for the warp's share of the MLP activation.
//
// Threads: each warp its contiguous share, 16 bytes of act a lane. Reads global act (hand-off); writes
// shared x (bf16).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const auto act = S::act(c);
  constexpr int kWide = decltype(act)::kWide;
  static_assert(P::kFfn % (kWide * S::kAgents) == 0, "shares are whole fetches");
  bf16* x = S::x(c);
  const int lo = share_begin(P::kFfn, S::kAgents, agent), hi = share_begin(P::kFfn, S::kAgents, agent + 1);
  for_each_wide<P::kFfn / S::kAgents>(c, act, lo, hi, [&](int i, int, float (&v)[kWide]) {
#pragma unroll
    for (int k = 0; k < kWide; k += 2) *reinterpret_cast<u32*>(x + x_place(i + k)) = pack_bf16(v[k], v[k + 1]);
  });
}

}  // namespace amk::ops
