// x = table[token] * norm[0], ssq[a] = sum of squares of the warp's share, residual = the worker's rows of table[token].
//
// Threads: each warp its contiguous share. Reads global table (bf16), norm (f32); writes shared x (bf16), ssq, residual (f32).
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void embed(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const bf16* row = S::table(c).data + static_cast<long long>(c.token) * P::kHidden;
  const float* norm = S::norm(c).data;
  bf16* x = S::x(c);
  float squares = 0.f;
  const int hi = share_begin(P::kHidden, S::kAgents, agent + 1);
  for (int i = share_begin(P::kHidden, S::kAgents, agent) + c.lane; i < hi; i += 32) {
    const float h = __bfloat162float(row[i]);
    squares += h * h;
    x[x_place(i)] = __float2bfloat16(h * norm[i]);
  }
  squares = warp_sum(squares);
  if (c.lane == 0) S::ssq(c)[agent] = squares;
  const int first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
  const int end = share_begin(rows, S::kAgents, agent + 1);
  float* residual = S::residual(c);
  for (int r = share_begin(rows, S::kAgents, agent) + c.lane; r < end; r += 32) {
    residual[r] = __bfloat162float(row[first + r]);
  }
}

}  // namespace amk::ops
