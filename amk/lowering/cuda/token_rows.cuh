// The rows of the embedding that belong to the tokens of a batch.
#pragma once
#include "amk/rows.cuh"

namespace amk {

// The embedding of sequence s's token; of more than 8 all lanes call, each for any s.
template <class S, class C>
__device__ __forceinline__ const bf16* token_row(C& c, int s) {
  using P = typename C::P;
  int token = c.tokens[0];
  if constexpr (C::kTokenALane) {
    token = __shfl_sync(0xffffffffu, token, s % 32);
#pragma unroll
    for (int k = 1; k < C::kTokens; ++k) {
      const int other = __shfl_sync(0xffffffffu, c.tokens[k], s % 32);
      token = s / 32 == k ? other : token;
    }
  } else {
    // Registers are not indexed by a variable.
#pragma unroll
    for (int k = 1; k < P::kBatch; ++k) token = k == s ? c.tokens[k] : token;
  }
  return row_at<P::kHidden>(S::table(c).data, token);
}

// residual = the worker's rows of every token's embedding, a contiguous share of them a warp.
template <class S, class C>
__device__ __forceinline__ void first_residuals(C& c) {
  using P = typename C::P;
  constexpr int kBatch = P::kBatch;
  const int agent = c.warp - S::kFirst, first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
  const int begin = share_begin(rows, S::kAgents, agent), count = share_begin(rows, S::kAgents, agent + 1) - begin;
  if constexpr (C::kTokenALane) {
#pragma unroll 1
    for (int from = 0; from < count * kBatch; from += 32) {
      const int n = from + c.lane, s = n % kBatch, r = begin + n / kBatch;
      const bf16* row = token_row<S>(c, s);
      if (n < count * kBatch) S::residual(c)[r + s * S::kResidualRow] = __bfloat162float(row[first + r]);
    }
  } else {
#pragma unroll 1
    for (int n = c.lane; n < count * kBatch; n += 32) {
      const int s = n % kBatch, r = begin + n / kBatch;
      float* residual = S::residual(c) + r;
      if constexpr (kBatch > 1) residual += s * S::kResidualRow;
      *residual = __bfloat162float(token_row<S>(c, s)[first + r]);
    }
  }
}

}  // namespace amk
