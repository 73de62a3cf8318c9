// hidden = table[token] as float, moments[a] of the warp's share as in stage_hidden, residual = the worker's rows of
// table[token]; for each sequence of the batch.
//
// Threads: each warp its contiguous share. Reads global table (bf16); writes shared hidden, moments, residual (f32).
#pragma once
#include "amk/ops/stage_hidden.cuh"
#include "amk/token_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void embed_hidden(C& c) {
  using P = typename C::P;
  constexpr int kCount = P::kHidden / S::kAgents, kWide = 2;
  const int agent = c.warp - S::kFirst, lo = kCount * agent;
#pragma unroll 1
  for (int s = 0; s < P::kBatch; ++s) {
    const bf16* row = token_row<S>(c, s);
    float *hidden = S::hidden(c) + lo, *moments = S::moments(c) + 2 * agent;
    if constexpr (P::kBatch > 1) {
      hidden += s * S::kHiddenRow, moments += s * S::kMomentsRow;
    }
    float sum = 0.f;
#pragma unroll 1
    for (int i = c.lane * kWide; i < kCount; i += 32 * kWide) {
      const float2 v = unpack_bf16(*reinterpret_cast<const u32*>(row + lo + i));
      sum += v.x + v.y;
      hidden[i] = v.x, hidden[i + 1] = v.y;
    }
    leave_moments<kCount, kWide>(c, hidden, sum, moments);
  }
  first_residuals<S>(c);
}

}  // namespace amk::ops
