// x = h * norm[index], ssq[a] = sum of squares of h over the warp's share. The consumer of x divides by rms.
//
// Threads: each warp its contiguous share, 4 elements a lane where shares allow. Reads global h (f32 hand-off), norm (f32);
// writes shared x (bf16), ssq (f32).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void stage_norm(C& c) {
  using P = typename C::P;
  constexpr int kWide = P::kHidden % (4 * S::kAgents) == 0 ? 4 : 1;
  const int agent = c.warp - S::kFirst;
  const auto h = S::h(c);
  const float* norm = S::norm(c).data + S::index(c) * P::kHidden;
  bf16* x = S::x(c);
  float squares = 0.f;
  const int lo = share_begin(P::kHidden, S::kAgents, agent), hi = share_begin(P::kHidden, S::kAgents, agent + 1);
#pragma unroll 4
  for (int i = lo + c.lane * kWide; i < hi; i += 32 * kWide) {
    float v[kWide];
    h.template load<kWide>(c, i, v);
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      squares += v[k] * v[k];
      v[k] *= norm[i + k];
    }
    if constexpr (kWide == 4) {
      const __nv_bfloat162 a = __floats2bfloat162_rn(v[0], v[1]), b = __floats2bfloat162_rn(v[2], v[3]);
      *reinterpret_cast<uint2*>(x + i) =
          make_uint2(reinterpret_cast<const u32&>(a), reinterpret_cast<const u32&>(b));
    } else {
      x[i] = __float2bfloat16(v[0]);
    }
  }
  squares = warp_sum(squares);
  if (c.lane == 0) S::ssq(c)[agent] = squares;
}

}  // namespace amk::ops
