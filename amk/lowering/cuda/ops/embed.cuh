// x = table[token] * norm[0], ssq[a] = sum of squares of the warp's share, residual = the worker's rows of table[token];
// for each sequence of the batch.
//
// Threads: each warp its contiguous share. Reads global table (bf16), norm (f32); writes shared x (bf16), ssq, residual (f32).
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void embed_token(C& c, int token, bf16* x, float* ssq, float* residual) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const bf16* row = S::table(c).data + static_cast<long long>(token) * P::kHidden;
  const float* norm = S::norm(c).data;
  float squares = 0.f;
  const int hi = share_begin(P::kHidden, S::kAgents, agent + 1);
  for (int i = share_begin(P::kHidden, S::kAgents, agent) + c.lane; i < hi; i += 32) {
    const float h = __bfloat162float(row[i]);
    squares += h * h;
    x[x_place(i)] = __float2bfloat16(h * norm[i]);
  }
  squares = warp_sum(squares);
  if (c.lane == 0) ssq[agent] = squares;
  const int first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
  const int end = share_begin(rows, S::kAgents, agent + 1);
  for (int r = share_begin(rows, S::kAgents, agent) + c.lane; r < end; r += 32) {
    residual[r] = __bfloat162float(row[first + r]);
  }
}

template <class S, class C>
__device__ __forceinline__ void embed(C& c) {
  constexpr int kBatch = C::P::kBatch;
  if constexpr (kBatch == 1) {
    embed_token<S>(c, c.tokens[0], S::x(c), S::ssq(c), S::residual(c));
  } else {
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      embed_token<S>(c, c.tokens[s], S::x(c) + s * S::kXRow, S::ssq(c) + s * S::kSsqRow,
                     S::residual(c) + s * S::kResidualRow);
    }
  }
}

}  // namespace amk::ops
